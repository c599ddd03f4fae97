"""The weight-transfer back end against vLLM's real base classes and its layer-wise reload."""

from __future__ import annotations

import contextlib
import threading
import warnings
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from safetensors.torch import save_file
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
        record_metadata_for_reloading,
    )

    from tensorcast.engines.vllm import plugin
    from tensorcast.engines.vllm.announcing import name_version
    from tensorcast.engines.vllm.disk import find_files, read_shapes, stamp
    from tensorcast.engines.vllm.trainer import (
        TensorCastTrainerEngine,
        TensorCastTrainerInitInfo,
    )
    from tensorcast.engines.vllm.transfer import (
        TensorCastWeightTransferEngine,
        UpdateInfo,
        describe,
        drop_partial,
        find_group,
        join,
        keep_apart,
        pack_text,
        unpack_text,
    )

from tensorcast.engines.aside import NotAside
from tensorcast.engines.updating import Weights
from tensorcast.engines.vllm.aside import kept_threads, set_threads
from tensorcast.engines.vllm.bringing import Bringing, Brought, try_aside
from tensorcast.engines.vllm.updates import Session
from tensorcast.schema.errors import InvalidArgument, NotFound, TensorCastError

ART = "a" * 40


def test_vllm_finds_it_by_the_name_of_the_flag():
    plugin.register_transfer()
    plugin.register_transfer()
    make = WeightTransferEngineFactory._registry["tensorcast"]
    assert make() is TensorCastWeightTransferEngine


@pytest.fixture
def bare():
    return object.__new__(TensorCastWeightTransferEngine)


def test_what_it_does_not_know_is_told_later_by_one_rank(bare):
    assert bare.parse_init_info({"url": "http://h"}).url == "http://h"
    assert bare.parse_update_info({"version": "v", "artifact": ART}).check
    for parse in (bare.parse_init_info, bare.parse_update_info):
        assert "unexpected" in parse({"bytes": 1}).problem
    assert parse({"bytes": 1}).problem.endswith(
        ". Known are version, artifact, check, parts, aside, ticket, timeout_s, cancel."
    )


def test_one_rank_agrees_with_itself(bare):
    assert find_group("get_tp_group") is None
    assert find_group("get_no_such_group") is None
    assert [bare.agree(problem) for problem in ("", "why")] == ["", "why"]


@pytest.mark.parametrize("text", ["", "why", "warum \u00e4" * 200])
def test_texts_of_ranks(text):
    assert text.startswith(unpack_text(pack_text(text)).rstrip("\ufffd"))
    assert bool(unpack_text(pack_text(text))) == bool(text)


class Ranks:
    """An engine of some ranks in this process, and vLLM's executor in front of it: it keeps the
    flag of each rank, and reads answers up to the first error."""

    def __init__(self, count):
        self.ranks = [make_rank(n, count) for n in range(count)]
        self.active = [False] * count
        self.unread = 0

    def call(self, name, info=None):
        answers = [self._one(n, name, info) for n in range(len(self.ranks))]
        failed = [n for n, error in enumerate(answers) if error]
        if failed:
            self.unread += len(answers) - 1 - failed[0]
            raise answers[failed[0]]

    def _one(self, n, name, info):
        rank = self.ranks[n]
        if self.active[n] == (name == "start_weight_update"):
            return RuntimeError("vLLM refuses")
        try:
            rank_call(rank, name, info)
        except Exception as error:
            if name == "receive_weights":
                self.active[n] = False
            return error
        self.active[n] = name != "finish_weight_update" and True
        return None


def make_rank(number, count):
    rank = object.__new__(TensorCastWeightTransferEngine)
    rank._speaks, rank._is_alone, rank._has_failed = number == count - 1, count == 1, False
    rank.session = Session.OVER
    rank._note = lambda session: setattr(rank, "session", session)
    rank._updater = Staged()
    rank._presence = None
    rank._bringing, rank._brought, rank._is_exchanged = None, None, False
    return rank


def rank_call(rank, name, info):
    getattr(rank, name)(*([UpdateInfo(**info)] if info is not None else []))


class Staged:
    """An updater that does as it is told."""

    fails_at = None

    def __init__(self):
        self.staged = None
        self.committed = 0

    def stage(self, bring):
        self.staged = None
        if Staged.fails_at == "stage":
            raise ValueError("no weights")
        self.staged = object()

    def cancel(self):
        self.staged = None

    def commit(self):
        if self.staged is None or Staged.fails_at == "commit":
            raise ValueError("no new weights")
        self.staged, self.committed = None, self.committed + 1
        return SimpleNamespace(version="v", artifact=None, name="")


def mend(ranks, session):
    """As `EngineServer.mend` does over HTTP."""
    steps = [("receive_weights", {"cancel": True}), ("finish_weight_update", None)]
    if session is Session.OPEN_ON_LAST:
        steps.insert(0, ("start_weight_update", None))
    for step in steps if session is not Session.OVER else ():
        with contextlib.suppress(RuntimeError, ValueError, TensorCastError):
            ranks.call(*step)


UPDATE = {"version": "v", "artifact": ART}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("ends", ["left", "left staged", "stage", "commit"])
def test_after_whatever_end_of_an_update_the_next_one_works_on_all_ranks(count, ends):
    ranks = Ranks(count)
    Staged.fails_at = ends if ends in ("stage", "commit") else None
    try:
        ranks.call("start_weight_update")
        if ends != "left":
            with contextlib.suppress(RuntimeError):
                ranks.call("receive_weights", UPDATE)
        if ends == "commit":
            with pytest.raises(RuntimeError, match="no new weights"):
                ranks.call("finish_weight_update")
    finally:
        Staged.fails_at = None
    mend(ranks, ranks.ranks[0].session)
    assert ranks.active == [False] * count
    assert [rank._updater.committed for rank in ranks.ranks] == [0] * count
    ranks.call("start_weight_update")
    ranks.call("receive_weights", UPDATE)
    ranks.call("finish_weight_update")
    assert ranks.unread == 0, "vLLM would take an old answer for the next one"
    assert [rank._updater.committed for rank in ranks.ranks] == [1] * count


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


# ---- what was brought and made aside


class Exchange:
    """What was made aside of one version; `fails` with the model as it was."""

    fails = False

    def __init__(self):
        self.times = 0

    def exchange(self):
        if self.fails:
            raise NotAside("others")
        self.times += 1


def weights_of(names, artifact=ART):
    tensors = {name: torch.full((2,), float(n)) for n, name in enumerate(names)}
    shapes = {name: describe(tensor) for name, tensor in tensors.items()}
    return Weights("v", artifact, lambda: iter(tensors.items()), shapes)


@pytest.fixture
def rank():
    made = make_rank(0, 1)
    made.loaded = []
    made._load = lambda weights: made.loaded.append(weights)
    return made


def test_what_was_made_aside_is_exchanged_and_back(rank):
    new, old = weights_of("a"), weights_of("b")
    rank._brought = Brought(new, Exchange())
    rank.apply(old)
    assert (rank.loaded, rank._brought.aside.times) == ([old], 0), "nothing was changed yet"
    rank.apply(new)
    rank.apply(new)
    assert rank._brought.aside.times == 1
    rank.apply(old)
    assert (rank.loaded, rank._brought.aside.times) == ([old], 2)


def test_what_cannot_be_exchanged_is_loaded(rank):
    new, aside = weights_of("a"), Exchange()
    aside.fails = True
    rank._brought = Brought(new, aside)
    rank.apply(new)
    rank._brought = Brought(new, None)
    rank.apply(new)
    assert rank.loaded == [new, new]


def test_weights_are_brought_once_for_a_ticket_and_the_question_after_it(rank):
    asked, told = [], []
    rank._bring = lambda info, stop: asked.append(info) or Brought(weights_of("a"), None)
    rank._tell_ticket = told.append
    rank._begin_to_bring(UpdateInfo(**UPDATE, ticket=5))
    assert rank._take_brought(UpdateInfo(**UPDATE)).version == "v"
    assert asked == [UpdateInfo(**UPDATE)]
    rank._take_brought(UpdateInfo(**{**UPDATE, "version": "w"}))
    assert len(asked) == 2
    assert 5 in told


def test_what_failed_in_the_thread_is_raised_where_it_is_asked_for():
    told = threading.Event()

    def fail(stop):
        raise NotFound("no such weights")

    bringing = Bringing("x", fail, told.set)
    with pytest.raises(NotFound):
        bringing.wait()
    assert told.wait(10)


def test_weights_that_cannot_be_made_aside_are_loaded_later():
    def fail(error):
        raise error

    assert try_aside(lambda: fail(NotAside("why"))) is None
    assert try_aside(lambda: fail(KeyError("x"))) is None
    made = Exchange()
    assert try_aside(lambda: made) is made


def test_torch_has_its_threads_again_when_one_is_made_before_another_has_ended():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    begun, goes_on, second = (threading.Event() for _ in range(3))
    seen = []

    def make(is_first):
        with kept_threads():
            set_threads(1)
            (begun if is_first else second).set()
            if is_first:
                goes_on.wait()

    threads = [threading.Thread(target=make, args=(first,)) for first in (True, False)]
    try:
        threads[0].start()
        begun.wait()
        threads[1].start()
        assert not second.wait(0.1), "it waits for the first"
        goes_on.set()
        for thread in threads:
            thread.join()
        after = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        after.start()
        after.join()
        assert seen == [3]
    finally:
        goes_on.set()
        torch.set_num_threads(before)


def test_parts_are_one_checkpoint():
    joined = join(ART, [weights_of("ab"), weights_of("c", "b" * 40)])
    assert sorted(name for name, _ in joined.tensors()) == ["a", "b", "c"]
    assert sorted(joined.shapes) == ["a", "b", "c"]
    assert joined.artifact == ART
    assert joined.name == f"{ART}+{'b' * 40}", "KV of other second parts is never that of these"
    with pytest.raises(InvalidArgument, match="Two parts of v have b"):
        join(ART, [weights_of("ab"), weights_of("bc")])


def test_parameters_in_mapped_bytes_get_memory_of_their_own_before_they_are_written_to():
    model = torch.nn.Linear(2, 2, bias=False)
    mapped = torch.frombuffer(bytearray(16), dtype=torch.float32).view(2, 2)
    model.weight.data = mapped
    keep_apart(model)
    model.weight.data.fill_(1.0)
    assert torch.equal(mapped, torch.zeros(2, 2))
    kept = model.weight.data_ptr()
    keep_apart(model)
    assert model.weight.data_ptr() == kept


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


# ---- the trainer's side


class Sync:
    """vLLM's client, as far as it is asked."""

    def __init__(self):
        self.asked = []

    def init_weight_transfer_engine(self, info):
        self.asked.append(("init", info))

    def start_weight_update(self):
        self.asked.append(("start",))

    def update_weights(self, info):
        self.asked.append(("update", info))

    def finish_weight_update(self, weight_version=None):
        self.asked.append(("finish", weight_version))


class Cluster:
    api = SimpleNamespace(
        artifact=lambda what: SimpleNamespace(id=ART),
        key=lambda what: SimpleNamespace(artifact=ART, version=1),
    )

    def publish(self, name, weights):
        self.published = {name: sorted(weights)}
        return f"{name}@7"


def test_a_trainer_publishes_and_sends_what_it_published():
    client, cluster = Sync(), Cluster()
    sender = TensorCastTrainerEngine(
        "policy", cluster, client=client, source=ModuleSource(torch.nn.Linear(2, 2))
    )
    sender.send_weights()
    assert cluster.published == {"policy": ["bias", "weight"]}
    assert client.asked == [
        ("start",),
        ("update", {"version": "policy@7", "artifact": ART}),
        ("finish", "policy@7"),
    ]
    assert sender.version == "policy@7"


def test_only_one_rank_of_a_trainer_sends():
    client = Sync()
    info = TensorCastTrainerInitInfo(name="policy", rank=1)
    other = TensorCastTrainerEngine.trainer_init(
        info, client=client, source=ModuleSource(torch.nn.Linear(2, 2))
    )
    other.send_weights()
    assert (client.asked, other.version) == ([], None)
    with pytest.raises(InvalidArgument, match="where the weights come from"):
        TensorCastTrainerEngine.trainer_init(info, client=client)


def test_vllm_finds_the_trainer_by_its_init_info():
    plugin.register_transfer()
    make = WeightTransferTrainerFactory._registry[TensorCastTrainerInitInfo.backend]
    assert make() is TensorCastTrainerEngine
