from pathlib import Path

import pytest

from tensorcast.storage.nics import (
    Gid,
    Nic,
    Place,
    Port,
    best_gids,
    choose_gid,
    choose_near,
    choose_nics,
    match_gids,
    pci_chain,
    read_nics,
)

V4 = Gid(index=3, address="0000:0000:0000:0000:0000:ffff:0a00:0001", kind="RoCE v2")
V6 = Gid(index=2, address="2001:0db8:0000:0000:0000:0000:0000:0001", kind="RoCE v2")
LINK = Gid(index=1, address="fe80:0000:0000:0000:0000:0000:0000:0001", kind="RoCE v2")
OLD = Gid(index=0, address="fe80:0000:0000:0000:0000:0000:0000:0001", kind="IB/RoCE v1")
NONE = Gid(index=4, address="0000:0000:0000:0000:0000:0000:0000:0000", kind="RoCE v2")


def nic(name, *, gbit_s=100.0, numa=-1, pci=(), **more):
    fields = {"number": 1, "is_active": True, "link": "Ethernet", "gids": (V4,), **more}
    return Nic(name=name, ports=(Port(gbit_s=gbit_s, **fields),), numa=numa, pci=pci)


def taken(nics, *args, **more):
    return [one.nic for one in choose_nics(nics, *args, **more) if one.is_taken]


GPU = Place(numa=0, pci=("pci0000:00", "0000:01:00.0", "0000:02:00.0"))


@pytest.mark.parametrize(
    ("nics", "place", "names"),
    [
        ([], Place(), []),
        ([nic("b"), nic("a")], Place(), ["a", "b"]),
        ([nic("a", gbit_s=25), nic("b", gbit_s=100)], Place(), ["b"]),
        ([nic("a", gbit_s=200), nic("b", gbit_s=400)], Place(), ["b"]),
        ([nic("a", numa=1), nic("b", numa=0)], Place(numa=0), ["b"]),
        ([nic("a", numa=1), nic("b", numa=1)], Place(numa=0), ["a", "b"]),
        (
            [
                nic("near", numa=0, pci=("pci0000:00", "0000:01:00.0", "0000:03:00.0")),
                nic("far", numa=0, pci=("pci0000:80", "0000:81:00.0")),
            ],
            GPU,
            ["near"],
        ),
        ([nic("a", is_active=False), nic("b", gids=()), nic("c", gids=(NONE,))], Place(), []),
        (
            [nic("a", link="InfiniBand", gids=()), nic("b", link="InfiniBand", lid=4)],
            Place(),
            ["b"],
        ),
    ],
)
def test_the_nearest_and_fastest_that_work_are_taken(nics, place, names):
    assert taken(nics, place) == names


def test_who_names_devices_gets_those_that_work_in_that_order():
    nics = [nic("a"), nic("b", gbit_s=25), nic("c", is_active=False)]
    assert taken(nics, wanted=("b", "a", "c")) == ["b", "a"]


def test_every_port_has_its_reason():
    nics = [nic("a"), nic("b", gbit_s=10), nic("c", is_active=False), nic("d", gids=())]
    reasons = {one.nic: one.why for one in choose_nics(nics)}
    assert reasons["a"].endswith("100 Gbit/s RoCE")
    assert reasons["b"] == "a is faster"
    assert "link is down" in reasons["c"]
    assert "no GID" in reasons["d"]


@pytest.mark.parametrize(
    ("gids", "more", "chosen"),
    [
        ((OLD, LINK, V6, V4), {}, V4),
        ((OLD, LINK, V6), {}, V6),
        ((OLD, LINK), {}, LINK),
        ((OLD,), {}, OLD),
        ((NONE,), {}, None),
        ((OLD, V4), {"index": 0}, OLD),
        ((OLD, V4), {"index": 9}, None),
    ],
)
def test_the_gid_is_one_that_reaches_furthest(gids, more, chosen):
    assert choose_gid(gids, **more) == chosen


OTHER_V4 = Gid(index=5, address="0000:0000:0000:0000:0000:ffff:0a01:0001", kind="RoCE v2")


@pytest.mark.parametrize(
    ("gids", "index", "found"),
    [
        ((OLD, LINK, V6, OTHER_V4, V4), None, (V4, V6, LINK, OLD)),
        ((OTHER_V4, NONE), None, (OTHER_V4,)),
        ((OLD, LINK, V6, OTHER_V4, V4), 5, (OTHER_V4,)),
        ((NONE,), None, ()),
    ],
)
def test_of_each_family_one_gid_is_told(gids, index, found):
    assert best_gids(gids, index) == found


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ((V4, V6), (V4, V6), (V4, V4)),
        ((V4, V6, LINK), (LINK, V6), (V6, V6)),
        ((LINK,), (OLD,), None),
        ((OLD,), (V4, OLD), (OLD, OLD)),
        ((V4,), (V6, LINK, OLD), None),
        ((V4,), (), None),
    ],
)
def test_both_ends_use_gids_of_one_kind(ours, theirs, found):
    assert match_gids(ours, theirs) == found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_devices_are_read_from_sysfs(tmp_path):
    device = tmp_path / "devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    write(device / "numa_node", "1\n")
    root = tmp_path / "class/infiniband"
    port = root / "mlx5_0/ports/1"
    for name, text in {
        "state": "4: ACTIVE\n",
        "link_layer": "Ethernet\n",
        "rate": "100 Gb/sec (4X EDR)\n",
        "lid": "0x0\n",
        "gids/0": f"{OLD.address}\n",
        "gids/3": f"{V4.address}\n",
        "gids/4": f"{NONE.address}\n",
        "gid_attrs/types/0": "IB/RoCE v1\n",
        "gid_attrs/types/3": "RoCE v2\n",
        "gid_attrs/ndevs/3": "eth0\n",
    }.items():
        write(port / name, text)
    write(tmp_path / "class/net/eth0/mtu", "9000\n")
    (root / "mlx5_0/device").symlink_to(device)
    (found,) = read_nics(root)
    assert (found.name, found.numa) == ("mlx5_0", 1)
    assert found.pci == ("pci0000:00", "0000:00:01.0")
    (read,) = found.ports
    assert (read.is_active, read.gbit_s, read.mtu_bytes) == (True, 100.0, 9000)
    assert [(gid.index, gid.kind, gid.interface) for gid in read.gids] == [
        (0, "IB/RoCE v1", ""),
        (3, "RoCE v2", "eth0"),
    ]
    assert read.interface == "eth0"
    assert read_nics(tmp_path / "nothing") == ()


def test_a_port_without_an_address_has_an_interface_all_the_same(tmp_path):
    root = tmp_path / "class/infiniband"
    write(root / "rxe0/ports/1/link_layer", "Ethernet\n")
    write(root / "rxe0/parent", "eth1\n")
    write(root / "mlx5_0/ports/1/link_layer", "Ethernet\n")
    write(root / "mlx5_0/device/net/eth2/mtu", "1500\n")
    write(root / "two/ports/1/link_layer", "Ethernet\n")
    for name in ("eth3", "eth4"):
        write(root / f"two/device/net/{name}/mtu", "1500\n")
    write(tmp_path / "class/net/eth1/mtu", "4200\n")
    found = {nic.name: nic.ports[0] for nic in read_nics(root)}
    assert (found["rxe0"].interface, found["rxe0"].mtu_bytes) == ("eth1", 4200)
    assert found["mlx5_0"].interface == "eth2"
    assert found["two"].interface == ""


def test_the_chain_of_bridges_is_that_above_a_device():
    device = Path("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0")
    assert pci_chain(device) == ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def test_what_is_near_to_any_of_several_gpus_is_taken():
    other = Place(numa=1, pci=("pci0000:80", "0000:81:00.0", "0000:82:00.0"))
    near = Nic(name="a", ports=nic("a").ports, numa=0, pci=GPU.pci[:2])
    far = Nic(name="b", ports=nic("b").ports, numa=1, pci=other.pci[:2])
    lost = Nic(name="c", ports=nic("c").ports, numa=2, pci=("pci0000:f0",))
    taken = [one.nic for one in choose_near([near, far, lost], [GPU, other]) if one.is_taken]
    assert taken == ["a", "b"]
    assert [one.nic for one in choose_near([near, far, lost]) if one.is_taken] == ["a", "b", "c"]
