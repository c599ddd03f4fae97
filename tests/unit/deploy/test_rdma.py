import resource

import msgspec
import pytest

from tensorcast.deploy.rdma import RdmaMachine, judge
from tensorcast.storage.nics import Gid, Nic, Place, Port

GID = Gid(
    index=3,
    address="0000:0000:0000:0000:0000:ffff:0a00:0001",
    kind="RoCE v2",
    interface="eth0",
)
LINK = Gid(index=1, address="fe80:0000:0000:0000:0000:0000:0000:0001", kind="RoCE v2")
PORT = Port(number=1, is_active=True, link="Ethernet", gbit_s=100, gids=(GID,), mtu_bytes=9000)
GOOD = RdmaMachine(
    nics=(Nic(name="mlx5_0", ports=(PORT,)),),
    memlock_bytes=resource.RLIM_INFINITY,
    has_pyverbs=True,
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
    ]


@pytest.mark.parametrize(
    ("machine", "name", "state", "word"),
    [
        (with_port(is_active=False), "mlx5_0/1", "warn", "ip link set"),
        (with_port(gids=()), "mlx5_0/1", "warn", "ip addr add"),
        (with_port(link="InfiniBand"), "mlx5_0/1", "warn", "subnet manager"),
        (with_port(gids=(LINK,)), "mlx5_0 GID", "warn", "IP address"),
        (with_port(mtu_bytes=1500), "mlx5_0 MTU", "warn", "9000"),
        (change(congestion={"eth0": "eth0 roce_np off"}), "mlx5_0 ECN", "warn", "Switch ECN on"),
        (change(congestion={}), "mlx5_0 ECN", "ok", "mlnx_qos"),
        (change(has_pyverbs=False), "pyverbs", "warn", "python3-pyverbs"),
        (change(is_readable=False), "access", "fail", "--device"),
        (change(memlock_bytes=8 << 20), "locked memory", "fail", "IPC_LOCK"),
        (change(modules=frozenset()), "GPUDirect", "warn", "peermem"),
        (change(modules=frozenset({"nvidia"}), kernel=(5, 4)), "GPUDirect", "warn", "5.12"),
        (change(nics=()), "devices", "ok", "modprobe"),
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
    assert "TENSORCAST_RDMA" in found["eth/1"].mend


def test_dmabuf_does_instead_of_peermem():
    (found,) = [x for x in judge(change(modules=frozenset({"nvidia"}))) if x.name == "GPUDirect"]
    assert (found.state, found.found) == ("ok", "the kernel has dmabuf")


def test_each_gpu_is_told_its_adapters():
    place = Place(numa=0, pci=("pci0000:00", "0000:00:01.0"))
    near = Nic(name="mlx5_1", ports=(PORT,), numa=0, pci=place.pci)
    found = judge(change(nics=(near, *GOOD.nics), places={"0000:17:00.0": place}))
    (told,) = [one for one in found if one.name == "GPU 0000:17:00.0"]
    assert "mlx5_1: it works below the GPU's switch" in told.found
    assert "mlx5_0" not in told.found
