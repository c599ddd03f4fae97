"""The engine's side of a roll-out, with a cluster that is made up."""

from types import SimpleNamespace

import pytest
import torch

from samples import artifact_id
from tensorcast.engines.receiving import Receiver
from tensorcast.engines.versions import find_version, name_version
from tensorcast.schema.errors import NotFound

OLD, NEW, OTHER = artifact_id("old"), artifact_id("new"), artifact_id("other")


class Client:
    """Artifacts by id, and what the key names."""

    def __init__(self):
        self.api = self
        self.named = OLD
        self.held = {OLD: {"w": torch.ones(3)}, NEW: {"w": torch.full((3,), 2.0)}}
        self.checked = []

    def artifact(self, what):
        key = "p@1" if self.named == OLD else "p@2"
        return SimpleNamespace(id=self.named, keys=("p", key, "q"))

    def get(self, artifact, *, check, timeout):
        self.checked.append(check)
        if artifact not in self.held:
            raise NotFound(f"There is no artifact {artifact}.")
        return self.held[artifact]


class Presence:
    def __init__(self):
        self.served = []

    def serve(self, version, artifact):
        self.served.append(version)

    def wait_recorded(self, timeout_s):
        pass


class Call:
    def __init__(self, verb, wanted=True, **arguments):
        self.id = "plan-1/x#1"
        self.verb = verb
        self.arguments = arguments
        self._wanted = wanted
        self.said = None

    def is_wanted(self):
        return self._wanted

    def drop(self):
        self.said = "dropped"

    def answer(self, outputs=None):
        self.said = outputs

    def fail(self, detail, *, kind="invalid", permanent=False):
        self.said = (kind, detail)


class Model:
    def __init__(self):
        self.loads = []
        self.breaks = False

    def load(self, tensors):
        number = float(tensors["w"][0])
        if self.breaks and number == 2.0:
            raise ValueError("no room")
        self.loads.append(number)


@pytest.fixture
def parts():
    client, presence, model = Client(), Presence(), Model()
    receiver = Receiver(client, presence, model.load)
    assert receiver.version == ""
    assert receiver.begin("p") == "p@1"
    return client, presence, model, receiver


def do(receiver, verb, **arguments):
    call = Call(verb, **arguments)
    assert receiver.answer(call)
    return call.said


def test_it_changes_when_it_is_asked_and_not_before(parts):
    client, presence, model, receiver = parts
    new, old = {"version": "p@2", "artifact": NEW}, {"version": "p@1", "artifact": OLD}
    assert do(receiver, "stage", **new) == {"version": "p@1"}
    assert (model.loads, client.checked) == ([1.0], [False, True])
    assert do(receiver, "switch", version="p@2") == {"version": "p@2"}
    assert do(receiver, "switch", version="p@2") == {"version": "p@2"}
    assert (model.loads, presence.served) == ([1.0, 2.0], ["p@1", "p@2"])
    assert do(receiver, "stage", **new) == {"version": "p@2"}
    assert do(receiver, "stage", check=False, **old) == {"version": "p@2"}
    assert do(receiver, "unstage") == {"version": "p@2"}
    assert do(receiver, "switch", version="p@1")[0] == "invalid"
    assert client.checked == [False, True, False]
    assert do(receiver, "stage", **old) == {"version": "p@2"}
    assert do(receiver, "switch", version="p@1") == {"version": "p@1"}


def test_what_it_cannot_take_leaves_the_old_ones(parts):
    client, _, model, receiver = parts
    assert do(receiver, "stage", version="p@3", artifact=OTHER)[0] == "not_found"
    client.held[OTHER] = {"w": torch.ones(4)}
    kind, detail = do(receiver, "stage", version="p@3", artifact=OTHER)
    assert (kind, "The new w is F32 [4]" in detail) == ("invalid", True)
    client.held[OTHER] = {"w": torch.ones(3), "v": torch.ones(1)}
    kind, detail = do(receiver, "stage", version="p@3", artifact=OTHER)
    assert (kind, "have v, which the model has not" in detail) == ("invalid", True)
    model.breaks = True
    assert do(receiver, "stage", version="p@2", artifact=NEW) == {"version": "p@1"}
    assert do(receiver, "switch", version="p@2") == ("invalid", "ValueError: no room")
    assert (model.loads, receiver.version) == ([1.0, 1.0], "p@1")
    assert do(receiver, "stage", version="p@3")[0] == "invalid"
    assert do(receiver, "stage", artifact=NEW)[0] == "invalid"


def test_all_parts_are_brought(parts):
    client, _, _, receiver = parts
    client.held[OTHER] = {"v": torch.ones(1)}
    given = {"p": NEW, "p.rank1": OTHER}
    assert do(receiver, "stage", version="p@2", artifact=NEW, parts=given) == {"version": "p@1"}
    assert do(receiver, "switch", version="p@2") == {"version": "p@2"}
    kind, detail = do(receiver, "stage", version="p@1", artifact=OLD)
    assert (kind, "lack v" in detail) == ("invalid", True)


def test_other_calls_are_left_and_old_ones_dropped(parts):
    _, _, model, receiver = parts
    other = Call("hydrate")
    assert not receiver.answer(other)
    assert other.said is None
    assert do(receiver, "switch", wanted=False, version="p@2") == "dropped"
    assert model.loads == [1.0]


def test_it_begins_with_what_the_key_names_in_the_end():
    client, presence, model = Client(), Presence(), Model()
    client.held[NEW] = {"w": torch.full((3,), 2.0)}
    load = model.load

    def load_and_move(tensors):
        load(tensors)
        client.named = NEW

    receiver = Receiver(client, presence, load_and_move)
    assert receiver.begin("p") == "p@2"
    assert (model.loads, presence.served) == ([1.0, 2.0], ["p@1", "p@2"])


def test_versions_are_named_by_their_keys():
    assert name_version("p", ("p", "p@2", "p@10", "q@11")) == "p@10"
    assert name_version("p", ("p", "q@11")) == ""
    client = SimpleNamespace(api=Client())
    assert find_version(client, "p") == ("p@1", OLD)
    client.api.artifact = lambda what: SimpleNamespace(id=OLD, keys=("p",))
    assert find_version(client, "p") == ("p", OLD)
