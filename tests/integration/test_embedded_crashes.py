"""kill -9 of each process of an embedded cluster: it comes back by itself or by the next `up`."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from embedded import home, is_running, outside, read_something, write_something
from tensorcast.deploy import cluster, doctor
from tensorcast.deploy.control import CONTROL_SOCKET

__all__ = ["home", "outside"]  # fixtures

pytestmark = pytest.mark.slow


def kill(home, name: str) -> int:
    pid = home.service(name).pid
    os.kill(pid, signal.SIGKILL)
    return pid


def zombies_of(pid: int) -> list[psutil.Process]:
    family = psutil.Process(pid).children(recursive=True)
    return [process for process in family if process.status() == psutil.STATUS_ZOMBIE]


def wait_until(condition, *, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["nats", "postgres"])
async def test_a_killed_server_comes_back_with_its_data(home, name):
    home.up()
    await write_something(home.config)
    old_pid = kill(home, name)
    home.wait_restarted(name, old_pid=old_pid)
    assert await read_something(home.config) == (b"kept", "kept")
    service = home.service(name)
    assert service.restarts == 1
    assert "restarted once; the last one was killed by SIGKILL" in service.detail
    wait_until(lambda: not zombies_of(home.service("supervisor").pid))  # one may just have ended
    assert cluster.status(home.home).state == "up"


def test_a_killed_mover_gets_its_memory_back(home):
    home.up(nodes=2)
    assert home.kept("n1") == {}
    kept = {"part0": "n1 part 0", "part2": "n1 part 2"}
    for restarts in (1, 2):
        old_pid = kill(home, "n1")
        home.wait_restarted("n1", old_pid=old_pid)
        assert home.kept("n1") == kept
        assert home.service("n1").restarts == restarts
    assert home.kept("n2") == {}


def test_no_descriptor_is_leaked_by_restarts(home):
    home.up()
    supervisor = psutil.Process(home.service("supervisor").pid)
    before = supervisor.num_fds()
    for _ in range(3):
        home.wait_restarted("n1", old_pid=kill(home, "n1"))
    # Not `==`: while it was counted first, somebody may have been connected.
    wait_until(lambda: supervisor.num_fds() <= before)
    mover = psutil.Process(home.service("n1").pid)
    assert mover.num_fds() == 3 + 2  # the three standard ones and the two that were kept


async def test_a_killed_supervisor_takes_all_down_gently_and_up_recovers(home):
    home.up(nodes=2)
    await write_something(home.config)
    services = cluster.status(home.home).services
    os.kill(services[0].pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(service.pid) for service in services))
    died = cluster.status(home.home)
    assert died.state == "down"
    assert "without a `tcctl down`" in died.services[0].detail
    assert any(c.state == "fail" and "died" in c.found for c in doctor.check(home.home))
    assert home.up().state == "up"
    assert any("recovering" in line for line in home.said)
    assert len(home.service("n2").detail) > 0
    assert await read_something(home.config) == (b"kept", "kept")


async def test_up_right_after_the_kill_waits_for_the_former_processes(home):
    home.up()
    await write_something(home.config)
    os.kill(home.service("supervisor").pid, signal.SIGKILL)
    assert home.up().state == "up"
    assert await read_something(home.config) == (b"kept", "kept")


async def test_everything_is_killed_at_once(home):
    """As after a power cut. Nobody may reap the dead here: Postgres must not fear a zombie."""
    home.up()
    await write_something(home.config)
    services = cluster.status(home.home).services
    family = psutil.Process(services[0].pid).children(recursive=True)
    psutil.Process(services[0].pid).suspend()
    for process in family:
        with suppress(psutil.NoSuchProcess):  # backends of Postgres go with their parent
            process.kill()
    os.kill(services[0].pid, signal.SIGKILL)
    assert home.up().state == "up"
    assert await read_something(home.config) == (b"kept", "kept")


def test_down_after_the_supervisor_was_killed_cleans_up(home):
    services = home.up().services
    os.kill(services[0].pid, signal.SIGKILL)
    home.down(purge=True)
    assert not any(is_running(service.pid) for service in services)
    assert not home.home.exists()


def test_down_works_without_the_control_socket(home):
    services = home.up().services
    (Path(home.config.sockets) / CONTROL_SOCKET).unlink()
    assert cluster.status(home.home).state == "degraded"
    home.down()
    assert not any(is_running(service.pid) for service in services)


def test_a_service_that_dies_at_each_start_is_tried_again_by_up(home, tmp_path):
    home.up()
    dies = tmp_path / "stand_in.py"
    good = dies.read_text()
    dies.write_text("raise SystemExit('it is broken')")
    kill(home, "controlplane")
    wait_until(lambda: home.service("controlplane").failures >= 3)
    service = home.service("controlplane")
    assert service.restarts == 1
    assert "it is broken" in service.detail or service.state == "restarting"
    assert cluster.status(home.home).state == "degraded"
    dies.write_text(good)
    assert home.up().state == "up"
