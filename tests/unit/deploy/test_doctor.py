"""What the doctor thinks of what it has found."""

from pathlib import Path

import pytest

from tensorcast.deploy.control import ServiceStatus
from tensorcast.deploy.doctor import (
    check_disk,
    check_gpu,
    check_memory,
    check_open_files,
    check_packages,
    check_rdma,
    check_services,
    judge_nats,
)
from tensorcast.deploy.home import Layout
from tensorcast.deploy.readiness import Status
from tensorcast.gpu.port import Properties

GIB = 1024**3
PROGRAM = Path("/bin/nats-server")
LAYOUT = Layout(Path("/nowhere"))

CASES = [
    (judge_nats((2, 15, 1), PROGRAM), "ok"),
    (judge_nats((2, 9, 10), PROGRAM), "fail"),
    (judge_nats((), PROGRAM), "fail"),
    (check_memory(8 * GIB, wanted_bytes=GIB, memfd=True), "ok"),
    (check_memory(GIB, wanted_bytes=8 * GIB, memfd=True), "warn"),
    (check_memory(8 * GIB, wanted_bytes=0, memfd=False), "fail"),
    (check_open_files(256), "fail"),
    (check_open_files(4096), "warn"),
    (check_open_files(1 << 20), "ok"),
    (check_open_files(-1), "ok"),
    (check_disk(1 << 20, Path("/d")), "fail"),
    (check_disk(GIB, Path("/d")), "warn"),
    (check_disk(90 * GIB, Path("/d")), "ok"),
    (check_rdma((), 0), "ok"),
    (check_rdma(("mlx5_0",), -1), "ok"),
    (check_rdma(("mlx5_0",), 8 << 20), "warn"),
    (check_gpu(()), "ok"),
    (check_gpu(("/dev/nvidia0",), (), "It has gone."), "warn"),
    (check_gpu(("/dev/nvidia0",), (Properties(index=0, name="H", pci="p", total_bytes=1),)), "ok"),
    (check_packages({"torch": "2.13", "msgspec": ""}), "fail"),
    (check_packages({"torch": "2.13"}), "ok"),
]


@pytest.mark.parametrize(("found", "state"), CASES)
def test_judgement(found, state):
    assert found.state == state


@pytest.mark.parametrize("found", [found for found, _ in CASES])
def test_whatever_is_not_well_says_how_to_mend_it(found):
    assert found.found
    assert bool(found.mend) == (found.state != "ok")


def test_services_are_judged_one_by_one():
    services = (
        ServiceStatus(name="nats", state="up", pid=1),
        ServiceStatus(name="n1", state="restarting", detail="the last one was killed by SIGKILL"),
        ServiceStatus(name="controlplane", state="waiting", detail="waiting for postgres"),
    )
    found = check_services(LAYOUT, Status(state="degraded", services=services))
    assert [check.state for check in found] == ["ok", "fail", "warn"]
    assert "SIGKILL" in found[1].found


def test_no_cluster_is_no_fault():
    assert [check.state for check in check_services(LAYOUT, Status(state="down"))] == ["ok"]


def test_a_cluster_that_was_stopped_is_a_hint_and_one_that_died_a_fault():
    stopped = ServiceStatus(name="supervisor", state="down", detail="not running")
    died = ServiceStatus(name="supervisor", state="down", detail="it died")
    for service, state in ((stopped, "warn"), (died, "fail")):
        (found,) = check_services(LAYOUT, Status(state="down", services=(service,)))
        assert found.state == state
        assert "tcctl up" in found.mend
