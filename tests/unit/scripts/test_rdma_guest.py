"""What ends without a guest: skipped where there can be none, failed where there should be one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
SKIPPED, FAILED = 69, 70
SEAL = """
import sys; from pathlib import Path; import rdma_kernel
made = rdma_kernel.CACHE / rdma_kernel.recipe()
(made / "modules").mkdir(parents=True)
(made / "modules/00-a.ko").write_text("a module")
(made / "linux").write_text(sys.argv[1])
(made / "linux").chmod(0o755)
rdma_kernel.seal(made)
print(made)
"""
FORBID = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
# seccomp: load the number; is it ptrace's? then EPERM, else let it through.
rows = ((0x20, 0, 0, 0), (0x15, 0, 1, 101), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="guests are for x86-64 Linux"
)


def python(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=SCRIPTS,
        env=kept | environ,
    )


def guest(*before: str, **environ: str) -> tuple[int, list[str]]:
    done = python(*before, str(SCRIPTS / "rdma_guest.py"), "--memory", "64", "true", **environ)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def make(cache: Path, linux: str) -> Path:
    """A cache with this for a kernel."""
    done = python("-c", SEAL, linux, TENSORCAST_RDMA_GUEST=str(cache))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("probe")
    make(cache, "#!/bin/sh\nexit 3\n")
    if guest(TENSORCAST_RDMA_GUEST=str(cache))[0] == SKIPPED:
        pytest.skip("ptrace is forbidden here: nothing but skipping can be seen")


def test_a_kernel_that_panics_is_a_failure(tmp_path: Path):
    made = make(tmp_path, "#!/bin/sh\necho Kernel panic - not syncing: oh\nexit 1\n")
    status, lines = guest(TENSORCAST_RDMA_GUEST=str(tmp_path))
    assert status == FAILED
    assert str(made) in lines[0]
    assert "did not come up" in lines[0]
    assert "Kernel panic" in "".join(lines)


def test_a_kernel_that_cannot_be_run_is_a_failure(tmp_path: Path):
    make(tmp_path, "no program at all")
    status, lines = guest(TENSORCAST_RDMA_GUEST=str(tmp_path))
    assert (status, len(lines)) == (FAILED, 1)


@pytest.mark.parametrize("name", ["linux", "modules/00-a.ko", "complete.json"])
def test_a_damaged_file_is_told_and_made_again(tmp_path: Path, name: str):
    """Here it cannot be made: there is no compiler on this PATH."""
    made = make(tmp_path, "#!/bin/sh\nexit 0\n")
    (made / name).write_bytes((made / name).read_bytes()[:3])
    status, lines = guest(TENSORCAST_RDMA_GUEST=str(tmp_path), PATH="/nowhere")
    assert status == FAILED
    assert lines == [
        f"rdma: something in {made} is damaged: it is made again",
        f"rdma: FAILED: {made} is damaged, and cannot be made again: "
        "this machine has no apt-get to make the guest with",
    ]


def test_a_machine_that_cannot_make_one_is_skipped_with_one_sentence(tmp_path: Path):
    status, lines = guest(TENSORCAST_RDMA_GUEST=str(tmp_path), PATH="/nowhere")
    assert (status, len(lines)) == (SKIPPED, 1)
    assert lines[0].endswith("this machine has no apt-get to make the guest with.")


def test_a_machine_that_forbids_ptrace_is_skipped_with_one_sentence(tmp_path: Path):
    make(tmp_path, "#!/bin/sh\nexit 1\n")
    status, lines = guest("-c", FORBID, TENSORCAST_RDMA_GUEST=str(tmp_path))
    assert (status, len(lines)) == (SKIPPED, 1)
    assert lines[0].endswith("this machine forbids ptrace(2).")


def test_a_folder_that_cannot_be_written_is_told_in_one_sentence():
    status, lines = guest(XDG_CACHE_HOME="/proc", TENSORCAST_RDMA_GUEST="")
    assert (status, len(lines)) == (FAILED, 1)
    assert "/proc" in lines[0]
