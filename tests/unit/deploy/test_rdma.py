import resource

import msgspec
import pytest

from tensorcast.deploy.doctor import summarize
from tensorcast.deploy.rdma import conclude, judge
from tensorcast.deploy.rdma_machine import RdmaMachine
from tensorcast.schema.rdma import RdmaSettings
from tensorcast.storage.nics import Gid, Nic, Place, Port

GID = Gid(
    index=3,
    address="0000:0000:0000:0000:0000:ffff:0a00:0001",
    kind="RoCE v2",
    interface="eth0",
)
LINK = Gid(index=1, address="fe80:0000:0000:0000:0000:0000:0000:0001", kind="RoCE v2")
PORT = Port(
    number=1,
    is_active=True,
    link="Ethernet",
    gbit_s=100,
    gids=(GID,),
    mtu_bytes=9000,
    interface="eth0",
)
GOOD = RdmaMachine(
    nics=(Nic(name="mlx5_0", ports=(PORT,)),),
    lockable_bytes=resource.RLIM_INFINITY,
    pyverbs_fault="",
    is_readable=True,
    modules=frozenset({"nvidia", "nvidia_peermem"}),
    gpus=("/dev/nvidia0",),
    kernel=(6, 1),
    congestion={"eth0": "eth0 roce_np on, eth0 roce_rp on"},
)


def with_port(**more) -> RdmaMachine:
    port = msgspec.structs.replace(PORT, **more)
    return msgspec.structs.replace(GOOD, nics=(Nic(name="mlx5_0", ports=(port,)),))


def change(**more) -> RdmaMachine:
    return msgspec.structs.replace(GOOD, **more)


def test_a_good_machine_has_nothing_to_mend():
    found = judge(GOOD)
    assert {one.state for one in found} == {"ok"}
    assert [one.name for one in found] == [
        "mlx5_0/1",
        "mlx5_0 GID",
        "mlx5_0 MTU",
        "mlx5_0 ECN",
        "pyverbs",
        "access",
        "locked memory",
        "GPUDirect",
        "adapters",
    ]
    assert (conclude(found), summarize(found)) == ("Movers use mlx5_0.", "All is well.")


@pytest.mark.parametrize(
    ("machine", "name", "state", "word"),
    [
        (with_port(is_active=False), "mlx5_0/1", "warn", "ip link set eth0 up"),
        (with_port(gids=()), "mlx5_0/1", "warn", "ip addr add ADDRESS/24 dev eth0"),
        (with_port(link="InfiniBand"), "mlx5_0/1", "warn", "subnet manager"),
        (with_port(gids=(LINK,)), "mlx5_0 GID", "warn", "ip addr add ADDRESS/24 dev eth0"),
        (with_port(mtu_bytes=1500), "mlx5_0 MTU", "warn", "ip link set eth0 mtu 9000"),
        (change(congestion={"eth0": "eth0 roce_np off"}), "mlx5_0 ECN", "warn", "Switch ECN on"),
        (change(congestion={}), "mlx5_0 ECN", "ok", "mlnx_qos"),
        (change(pyverbs_fault="there is none"), "pyverbs", "fail", "python3-pyverbs"),
        (change(is_readable=False), "access", "fail", "--device"),
        (change(lockable_bytes=64 << 10), "locked memory", "fail", "IPC_LOCK"),
        (change(modules=frozenset()), "GPUDirect", "warn", "peermem"),
        (change(modules=frozenset(), kernel=(5, 4), has_dmabuf=True), "GPUDirect", "warn", "5.12"),
        (change(nics=()), "adapters", "ok", "modprobe"),
        (change(nics=(), pyverbs_fault="there is none"), "pyverbs", "warn", "python3-pyverbs"),
        (change(settings=RdmaSettings(gid_index=99)), "mlx5_0 GID", "fail", "It has 3:"),
        (change(settings=RdmaSettings(devices=("x",))), "settings", "fail", "It knows mlx5_0."),
        (change(refusal=("It is wrong.", "Write it.")), "settings", "fail", "Write it."),
        (change(misspelt=("X is no setting.",)), "settings", "warn", "docs/rdma.md"),
    ],
)
def test_each_fault_is_found_and_says_how_to_mend_it(machine, name, state, word):
    (found,) = [one for one in judge(machine) if one.name == name]
    assert found.state == state
    assert word in found.mend


def test_an_adapter_that_is_slower_says_so():
    slow = Nic(name="eth", ports=(msgspec.structs.replace(PORT, gbit_s=10),))
    found = {one.name: one for one in judge(change(nics=(*GOOD.nics, slow)))}
    assert found["eth/1"].found == "not used: mlx5_0 is faster"
    assert found["eth/1"].state == "ok", "it is as it should be"
    assert "TENSORCAST_RDMA" in found["eth/1"].mend


def test_dmabuf_does_instead_of_peermem_when_the_driver_gives_it():
    no_peermem = {"modules": frozenset({"nvidia"})}
    for has_dmabuf, state in ((True, "ok"), (False, "warn")):
        (found,) = [
            one
            for one in judge(change(**no_peermem, has_dmabuf=has_dmabuf))
            if one.name == "GPUDirect"
        ]
        assert found.state == state


def told(machine: RdmaMachine) -> tuple[str, str]:
    found = judge(machine)
    return conclude(found), summarize(found)


@pytest.mark.parametrize(
    "machine",
    [
        with_port(is_active=False),
        with_port(gids=()),
        change(pyverbs_fault="there is none"),
        change(is_readable=False),
        change(settings=RdmaSettings(devices=("mlx5_9",))),
        change(settings=RdmaSettings(gid_index=99)),
        change(refusal=("It is wrong.", "")),
    ],
)
def test_the_last_line_says_when_no_adapter_can_be_used(machine: RdmaMachine):
    conclusion, summary = told(machine)
    assert conclusion == "No adapter can be used: nodes talk over TCP."
    assert "failed" in summary


def test_the_last_line_counts_warnings():
    assert told(with_port(mtu_bytes=1500)) == (
        "Movers use mlx5_0.",
        "No check failed, 1 warns.",
    )
    assert "no device" in told(change(nics=()))[0]


def test_what_is_switched_off_is_not_judged():
    conclusion, summary = told(change(settings=RdmaSettings(is_on=False)))
    assert "switched off" in conclusion
    assert summary == "All is well."


def test_packets_that_are_wished_smaller_need_less():
    smaller = RdmaSettings(mtu_bytes=1024)
    machine = msgspec.structs.replace(with_port(mtu_bytes=1500), settings=smaller)
    assert {one.state for one in judge(machine)} == {"ok"}


def test_a_limit_of_less_than_a_mebibyte_is_told():
    (found,) = [one for one in judge(change(lockable_bytes=65536)) if one.name == "locked memory"]
    assert found.found == "at most 64 KiB"


def test_each_gpu_is_told_its_adapters():
    place = Place(numa=0, pci=("pci0000:00", "0000:00:01.0"))
    near = Nic(name="mlx5_1", ports=(PORT,), numa=0, pci=place.pci)
    found = judge(change(nics=(near, *GOOD.nics), places={"0000:17:00.0": place}))
    (told,) = [one for one in found if one.name == "GPU 0000:17:00.0"]
    assert "mlx5_1: it works below the GPU's switch" in told.found
    assert "mlx5_0" not in told.found
