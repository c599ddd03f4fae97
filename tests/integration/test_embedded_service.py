"""One supervised process: descriptors, environment and a forced end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys

import pytest

from tensorcast.deploy.plan import ServiceSpec
from tensorcast.deploy.service import Service
from tensorcast.deploy.spawn import Launch, spawn

DEAF = """
import os, signal, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
    channel.connect(os.environ["NOTIFY_SOCKET"])
    channel.send(b"READY=1")
while True:
    signal.pause()
"""

TELL = """
import json, os, signal, sys
names = sorted(int(name) for name in os.listdir("/proc/self/fd"))
places = [n for n in names if n > 2 and os.path.exists(f"/proc/self/fd/{n}")]
print(json.dumps({
    "fds": [os.pread(n, 9, 0).decode() for n in places],
    "places": places,
    "pid": os.getpid(),
    "environ": dict(os.environ),
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
}))
"""


async def reap(service: Service) -> None:
    while True:
        if service.pid:
            with contextlib.suppress(ChildProcessError):
                # It returns at once.
                pid, status = os.waitpid(service.pid, os.WNOHANG)  # noqa: ASYNC222
                if pid:
                    service.end(status)
        await asyncio.sleep(0.01)


async def test_a_deaf_service_is_killed_after_its_time(tmp_path):
    spec = ServiceSpec(
        name="deaf", command=(sys.executable, "-c", DEAF), stop_timeout_s=0.3, stage=1
    )
    service = Service(
        spec,
        sockets=tmp_path,
        log=tmp_path / "log",
        environ=os.environ,
        changed=lambda: None,
    )
    reaping = asyncio.create_task(reap(service))
    keeping = asyncio.create_task(service.keep(()))
    async with asyncio.timeout(20):
        await service.ready.wait()
        await service.stop()
        await keeping
    reaping.cancel()
    assert service.state == "down"
    assert "SIGKILL" in service.status().detail
    assert not (tmp_path / "deaf.notify").exists()


def run(launch: Launch) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(spawn(launch), 0)[1])


def launch(tmp_path, *command: str, **more) -> Launch:
    return Launch(
        command=command, environ={"A": "1"}, folder="/", log=str(tmp_path / "log"), **more
    )


def test_descriptors_land_on_three_and_up_whatever_they_were(tmp_path):
    kept = [os.memfd_create(str(n)) for n in range(4)]
    for number, descriptor in enumerate(kept):
        os.write(descriptor, f"part {number}".encode())
    # In an order that would overwrite one another if they were moved naively.
    order = [kept[2], kept[0], kept[3], kept[1]]
    named = tuple((f"name{n}", descriptor) for n, descriptor in enumerate(order))
    assert run(launch(tmp_path, sys.executable, "-c", TELL, descriptors=named)) == 0
    told = json.loads((tmp_path / "log").read_text())
    assert told["fds"][:4] == ["part 2", "part 0", "part 3", "part 1"]
    assert told["places"][:4] == [3, 4, 5, 6]
    assert told["environ"]["LISTEN_FDS"] == "4"
    assert told["environ"]["LISTEN_FDNAMES"] == "name0:name1:name2:name3"
    assert told["environ"]["LISTEN_PID"] == str(told["pid"])
    for descriptor in kept:
        os.close(descriptor)


def test_a_child_inherits_nothing_that_is_not_meant_for_it(tmp_path):
    ours = os.open("/", os.O_RDONLY)
    os.set_inheritable(ours, True)
    assert run(launch(tmp_path, sys.executable, "-c", TELL)) == 0
    os.close(ours)
    told = json.loads((tmp_path / "log").read_text())
    assert told["places"] == []
    assert "HOME" not in told["environ"]
    assert told["blocked"] == 0
    assert told["term"]


def test_a_program_that_cannot_be_run_says_so_in_its_log(tmp_path):
    assert run(launch(tmp_path, "/nowhere/program")) == 127
    assert "cannot run /nowhere/program" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_child_gets_its_signal_when_its_parent_dies(tmp_path, number):
    parent = os.fork()
    if parent == 0:
        pid = spawn(launch(tmp_path, "/bin/sleep", "60", death_signal=number))
        (tmp_path / "pid").write_text(str(pid))
        os._exit(0)
    os.waitpid(parent, 0)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        state = read_state(pid)
        if state in ("", "Z"):
            return
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"it lives on, state {state}")


def read_state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


LEAVE = """
import os, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
    channel.connect(os.environ["NOTIFY_SOCKET"])
    channel.send(b"READY=1")
    channel.send(b"STATUS=one is not kept")
    channel.send(b"STATUS=two is not kept")
"""


async def test_every_word_that_a_service_said_before_its_end_is_heard(tmp_path):
    heard: list[str] = []
    service = Service(
        ServiceSpec(name="brief", command=(sys.executable, "-c", LEAVE)),
        sockets=tmp_path,
        log=tmp_path / "log",
        environ=os.environ,
        changed=lambda: heard.append(service.told),
    )
    keeping = asyncio.create_task(service.keep(()))
    async with asyncio.timeout(20):
        while service.pid is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # The loop may not read what it said before it learns of the end.
        _, status = os.waitpid(service.pid, 0)  # noqa: ASYNC222
        service.end(status)
        while service.restarts == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert [told for told in heard if told] == ["one is not kept", "two is not kept"]
        reaping = asyncio.create_task(reap(service))
        await service.stop()
        await keeping
    reaping.cancel()
