import pytest

from samples import artifact_id
from tensorcast.schema.aggregates import artifact, key, lease, machine, node, operation, replica
from tensorcast.schema.aggregates.artifact import ArtifactStatus
from tensorcast.schema.errors import Rejected
from tensorcast.schema.events import ArtifactPinned, ArtifactSealed

AGGREGATES = [artifact, key, lease, node, operation, replica]
PINNED = ArtifactPinned(artifact=artifact_id("a"))


def test_an_entry_of_the_table_is_the_next_status():
    found = machine.next_status(artifact.TRANSITIONS, ArtifactStatus.SEALED, PINNED, "artifact a")
    assert found is ArtifactStatus.SEALED


@pytest.mark.parametrize(("status", "word"), [(None, "not there"), ("removed", "removed")])
def test_an_absent_entry_is_the_error(status, word):
    with pytest.raises(Rejected, match=rf"artifact a is {word}, so 'artifact\.pinned' cannot"):
        machine.next_status(artifact.TRANSITIONS, status, PINNED, "artifact a")


def test_an_older_epoch_is_fenced():
    machine.check_epoch(3, 3, "replica r")
    machine.check_epoch(3, 4, "replica r")
    with pytest.raises(Rejected, match="epoch 3; epoch 2 is stale"):
        machine.check_epoch(3, 2, "replica r")


def test_a_table_becomes_a_diagram():
    table = {
        (None, ArtifactSealed): ArtifactStatus.SEALED,
        (ArtifactStatus.SEALED, ArtifactPinned): ArtifactStatus.SEALED,
    }
    assert machine.draw(table).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> sealed: artifact.sealed",
        "    sealed --> sealed: artifact.pinned",
    ]


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_every_status_of_a_machine_can_be_reached(aggregate):
    statuses = {type(target) for target in aggregate.TRANSITIONS.values()}
    (status,) = statuses
    reached, new = {None}, True
    while new:
        new = {t for (s, _), t in aggregate.TRANSITIONS.items() if s in reached} - reached
        reached |= new
    assert reached - {None} == set(status)
