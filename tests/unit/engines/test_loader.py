"""The loader over vLLM's real base class, with a cluster that is away, late or breaks off."""

from __future__ import annotations

import logging
import mmap
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tensorcast.engines.vllm import serving
from tensorcast.schema.errors import InvalidArgument, NotFound, TensorCastError, Unavailable
from tensorcast.schema.tensors import lay_out

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.load import LoadConfig

    from tensorcast.engines.vllm.loader import TensorCastModelLoader, is_spread

ARTIFACT = "ab" * 20
INDEX, SIZE = lay_out([("a", "F32", (64, 16)), ("b", "F32", (64, 16))])


class Model(nn.Module):
    """Two parameters, loaded as vLLM's models load theirs."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            setattr(self, name, nn.Parameter(torch.empty(64, 16), requires_grad=False))

    def load_weights(self, weights) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            getattr(self, name).data.copy_(tensor)
            loaded.add(name)
        return loaded


class Arrival:
    """All of an artifact, or its first tensor and then what ends it."""

    index = INDEX
    artifact = ARTIFACT

    def __init__(self, breaks: bool) -> None:
        self.memory = mmap.mmap(-1, SIZE)
        self.memory[:] = bytes(range(1, 129)) * (SIZE // 128)
        self.breaks = breaks

    is_whole = property(lambda self: not self.breaks)
    is_excerpt = False
    size_bytes = SIZE

    def has(self, place) -> bool:
        return not self.breaks or place.offset == 0

    def wait(self, *, timeout: float) -> None:
        raise Unavailable("The source is gone.")

    def prefault(self) -> None:
        pass


class Loader(TensorCastModelLoader):
    """With a cluster of the test: `answers` are what it says when it is asked to follow. What it
    finds on disk is ones."""

    def __init__(self, answers, **options: object) -> None:
        super().__init__(
            LoadConfig(
                load_format="tensorcast", model_loader_extra_config={"key": "k@1", **options}
            )
        )
        self.answers = list(answers)
        self.asked: list[str] = []

    @contextmanager
    def _connected(self):
        yield self

    def follow(self, what: str, *, excerpt: bool = False, timeout: float) -> Arrival:
        self.wants_excerpt = excerpt
        answer = self.answers.pop(0)
        self.asked.append(what)
        if isinstance(answer, TensorCastError):
            raise answer
        return answer

    def get(self, what: str, **_: object) -> None:
        self.asked.append(f"get {what}")

    def _get_weights_iterator(self, source):
        yield from ((name, torch.ones(64, 16)) for name in "ab")


@pytest.fixture
def config():
    """What the loader reads of a vLLM model config."""
    return SimpleNamespace(
        model="/models/m",
        revision=None,
        quantization=None,
        is_moe=False,
        multimodal_config=None,
    )


@pytest.fixture(autouse=True)
def no_weights_yet():
    serving.set_weights(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = VllmConfig()
    with set_current_vllm_config(settings):
        yield
    serving.set_weights(None)


def is_given(model: Model, arrival: Arrival) -> bool:
    flat = torch.frombuffer(arrival.memory, dtype=torch.float32)
    return torch.equal(model.a.flatten(), flat[:1024]) and torch.equal(
        model.b.flatten(), flat[1024:2048]
    )


def test_weights_are_in_place_and_it_is_known_which_they_are(config):
    arrival = Arrival(breaks=False)
    loader, model = Loader([arrival]), Model()
    loader.load_weights(model, config)
    assert is_given(model, arrival)
    start = torch.frombuffer(arrival.memory, dtype=torch.uint8).data_ptr()
    assert model.a.data_ptr() == start
    assert serving.current_weights() == ARTIFACT
    assert loader.asked == ["k@1"]


def test_without_an_answer_the_disk_serves_and_the_log_says_it(config, caplog):
    loader, model = Loader([Unavailable("No mover.")]), Model()
    with caplog.at_level(logging.WARNING, logger="vllm.tensorcast"):
        loader.load_weights(model, config)
    assert bool((model.a == 1).all())
    assert bool((model.b == 1).all())
    (record,) = caplog.records
    assert "no weights k@1 for this engine (No mover.)" in record.getMessage()
    assert serving.current_weights() is None


def test_without_an_answer_and_without_a_way_back_it_fails(config):
    with pytest.raises(Unavailable, match="No mover"):
        Loader([Unavailable("No mover.")], fallback=False).load_weights(Model(), config)


@pytest.mark.parametrize("answer", [NotFound("There is no k@1."), InvalidArgument("No key.")])
def test_what_the_layer_does_not_have_is_never_replaced_by_other_weights(config, caplog, answer):
    with pytest.raises(type(answer)):
        Loader([answer]).load_weights(Model(), config)
    assert "The weights k@1 cannot be had" in caplog.text


def test_a_folder_without_weights_is_no_way_back(config, tmp_path, caplog):
    config.model = str(tmp_path)
    with pytest.raises(Unavailable, match="No mover"):
        Loader([Unavailable("No mover.")]).load_weights(Model(), config)
    assert "The weights k@1 cannot be had: No mover." in caplog.text


def test_weights_that_stop_coming_are_asked_for_once_more(config, caplog):
    second = Arrival(breaks=False)
    loader, model = Loader([Arrival(breaks=True), second]), Model()
    loader.load_weights(model, config)
    assert loader.asked == ["k@1", "get k@1", "k@1"]
    assert is_given(model, second)
    assert serving.current_weights() == ARTIFACT
    assert "stopped coming" in caplog.text


def test_what_stops_twice_comes_from_the_disk(config, caplog):
    loader, model = Loader([Arrival(breaks=True), Arrival(breaks=True)]), Model()
    loader.load_weights(model, config)
    assert bool((model.a == 1).all())
    assert bool((model.b == 1).all())
    assert serving.current_weights() is None
    assert "it loads those on disk" in caplog.text


class Excerpt(Arrival):
    """Nothing is there; what is asked for comes at once."""

    is_excerpt = True

    def __init__(self) -> None:
        super().__init__(breaks=True)
        self.whole = bytes(self.memory)
        self.memory[:] = bytes(SIZE)
        self.here_bytes = 0

    def bring(self, places, *, timeout: float) -> None:
        for place in places:
            self.memory[place.offset : place.end] = self.whole[place.offset : place.end]
            self.here_bytes += place.size


class Half(Model):
    """One of two ranks: it has the upper rows of `a` and the left columns of `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(32, 16), requires_grad=False)
        self.b = nn.Parameter(torch.empty(64, 8), requires_grad=False)

    def load_weights(self, weights) -> set[str]:
        found = dict(weights)
        self.a.data.copy_(found["a"].narrow(0, 0, 32))
        self.b.data.copy_(found["b"].narrow(1, 0, 8))
        return set(found)


def test_a_rank_has_only_what_it_needs_brought(config, caplog):
    arrival = Excerpt()
    loader, model = Loader([arrival], partial=True), Half()
    with caplog.at_level(logging.INFO, logger="vllm.tensorcast"):
        loader.load_weights(model, config)
    assert loader.wants_excerpt
    whole = torch.frombuffer(bytearray(arrival.whole), dtype=torch.float32)
    assert torch.equal(model.a, whole[:512].view(32, 16))
    assert torch.equal(model.b, whole[1024:2048].view(64, 16)[:, :8])
    assert not any(arrival.memory[2048:4096])  # the lower rows of `a`
    assert "brought" in caplog.text


@pytest.mark.parametrize(
    ("options", "nodes", "wants"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"partial": False}, 2, False),
        ({"in_place": False}, 2, False),
    ],
)
def test_parts_are_for_engines_on_several_machines(config, options, nodes, wants):
    loader = Loader([Arrival(breaks=False)], **options)
    spread = SimpleNamespace(parallel_config=SimpleNamespace(nnodes=nodes))
    loader._is_spread = is_spread(spread)
    loader.load_weights(Model(), config)
    assert loader.wants_excerpt is wants


def test_another_model_of_the_engine_is_loaded_from_the_disk(config):
    loader, model = Loader([]), Model()
    loader._main = SimpleNamespace(model="/models/main")
    loader.load_weights(model, config)
    assert bool((model.a == 1).all())
    assert loader.asked == []


def test_a_reload_of_other_weights_asks_for_them_by_their_name(config, monkeypatch):
    monkeypatch.setattr(TensorCastModelLoader, "model_at_start", "/models/m")
    config.model = "k@2"
    loader = Loader([Arrival(breaks=False)])
    assert dict(loader.get_all_weights(config, Model())).keys() == {"a", "b"}
    assert loader.asked == ["k@2"]
    assert serving.current_weights() == ARTIFACT


def test_options_that_are_not_known_are_told():
    with pytest.raises(InvalidArgument, match="Known are key"):
        Loader([], keys="k@1")
