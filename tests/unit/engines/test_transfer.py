"""The weight-transfer back end against vLLM's real base classes and its layer-wise reload."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from safetensors.torch import save_file
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
        record_metadata_for_reloading,
    )

    from tensorcast.engines.vllm import plugin
    from tensorcast.engines.vllm.announcing import name_version
    from tensorcast.engines.vllm.disk import find_files, read_shapes, stamp
    from tensorcast.engines.vllm.transfer import (
        TensorCastWeightTransferEngine,
        describe,
        drop_partial,
        find_group,
    )

from tensorcast.schema.errors import NotFound

ART = "a" * 40


def test_vllm_finds_it_by_the_name_of_the_flag():
    plugin.register_transfer()
    plugin.register_transfer()
    make = WeightTransferEngineFactory._registry["tensorcast"]
    assert make() is TensorCastWeightTransferEngine


@pytest.fixture
def bare():
    return object.__new__(TensorCastWeightTransferEngine)


def test_it_refuses_what_it_does_not_know(bare):
    assert bare.parse_init_info({"url": "http://h"}).url == "http://h"
    assert bare.parse_update_info({"version": "v", "artifact": ART}).check
    for parse in (bare.parse_init_info, bare.parse_update_info):
        with pytest.raises(ValueError, match="unexpected"):
            parse({"bytes": 1})


def test_one_rank_agrees_with_itself(bare):
    assert find_group("get_tp_group") is None
    assert find_group("get_no_such_group") is None
    assert [bare.agree(good) for good in (True, False)] == [True, False]


class Model(torch.nn.Module):
    """Three layers, loaded as vLLM's models are."""

    def __init__(self):
        super().__init__()
        for name in "abc":
            layer = torch.nn.Linear(4, 4)
            self.add_module(name, layer)

    def load_weights(self, weights):
        loaded = set()
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            parameter = parameters[name]
            load = getattr(parameter, "weight_loader", None)
            load(parameter, tensor) if load else parameter.data.copy_(tensor)
            loaded.add(name)
        return loaded


def values(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("after", range(6))
def test_a_reload_that_broke_off_leaves_nothing_behind(after):
    with torch.no_grad():
        model = Model()
        record_metadata_for_reloading(model)
        new = {name: torch.full_like(value, 9.0) for name, value in values(model).items()}
        old = values(model)
        initialize_layerwise_reload(model)
        model.load_weights(list(new.items())[:after])
        drop_partial(model)
        for name, value in values(model).items():
            assert torch.equal(value, old[name]) or torch.equal(value, new[name])
        initialize_layerwise_reload(model)
        model.load_weights(old.items())
        finalize_layerwise_reload(model, SimpleNamespace(dtype=torch.float32))
        assert all(torch.equal(value, old[name]) for name, value in values(model).items())


def test_tensors_and_files_are_described_in_the_same_words(tmp_path):
    tensors = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    files = find_files(str(tmp_path))
    assert read_shapes(files) == {name: describe(tensor) for name, tensor in tensors.items()}
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    assert read_shapes(find_files(str(tmp_path))) == {}
    assert find_files("a/model/of/a/hub") == ()


def test_a_checkpoint_that_was_written_anew_is_told(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2)}, file)
    before = stamp((file,))
    assert stamp((file,)) == before
    save_file({"a": torch.ones(2)}, tmp_path / "other")
    (tmp_path / "other").rename(file)
    assert stamp((file,)) != before
    file.unlink()
    assert stamp((file,)) == {}


class Api:
    def key(self, name):
        if name == "gone":
            raise NotFound("no key")
        return SimpleNamespace(artifact="b" * 40 if name == "moved" else ART, version=3)


@pytest.mark.parametrize(
    ("name", "version"),
    [("policy@7", "policy@7"), ("policy", "policy@3"), ("moved", ART), ("gone", ART), (ART, ART)],
)
def test_what_the_weights_of_the_start_are_called(name, version):
    assert name_version(SimpleNamespace(api=Api()), name, ART) == (version, ART)
