"""Whether what the movers hold in memory fits on their disks."""

import pytest

from tensorcast.deploy.losses import Burden, find_shortage

MIB = 1 << 20
FIRST, SECOND = 1, 2


def burden(node, disk, unsaved, free):
    return Burden(node=node, disk=disk, unsaved_bytes=unsaved * MIB, free_bytes=free * MIB)


@pytest.mark.parametrize(
    "burdens",
    [
        [],
        [burden("n1", FIRST, 0, 0)],
        [burden("n1", FIRST, 100, 132)],
        [burden("n1", FIRST, 60, 132), burden("n2", FIRST, 40, 132)],
        [burden("n1", FIRST, 100, 132), burden("n2", SECOND, 100, 132)],
    ],
)
def test_what_fits_is_no_loss(burdens):
    assert find_shortage(burdens) is None


def test_nodes_share_the_room_of_one_disk():
    refusal = find_shortage([burden("n1", FIRST, 60, 132), burden("n2", FIRST, 41, 132)])
    assert refusal is not None
    assert refusal.message == (
        "The memory of n1, n2 does not fit on the disk: 133 MiB are needed, 132 MiB are free."
    )
    assert all(words in refusal.hint for words in ("Free some space", "artifact rm", "--force"))


def test_only_the_nodes_of_the_full_disk_are_named():
    burdens = [
        burden("n1", FIRST, 60, 1000),
        burden("n2", SECOND, 60, 10),
        burden("n3", SECOND, 0, 10),
    ]
    refusal = find_shortage(burdens)
    assert refusal is not None
    assert (refusal.node, "n1" in refusal.message, "n3" in refusal.message) == ("n2", False, False)
