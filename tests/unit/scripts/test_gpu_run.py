"""What `tests/gpu/run` does where torch is missing, broken, or finds no device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "gpu" / "run"

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="the device is real here")


def run(folder: Path, torch: str | None, *, has_device: bool) -> tuple[int, str]:
    """The exit status and the only line that it prints."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    if torch is not None:
        (folder / "torch.py").write_text(torch)
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{'echo GPU 0: one' if has_device else 'exit 9'}\n")
    smi.chmod(0o755)
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "TENSORCAST_PYTHON": str(python),
    }
    done = subprocess.run([RUN], capture_output=True, text=True, env=os.environ | environ)
    (line,) = (done.stdout + done.stderr).splitlines()
    return done.returncode, line


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        (None, "there is no torch in"),
        ("raise OSError('libcudart.so.13:\\nno such file')", "(OSError libcudart.so.13: no such"),
        (
            "class cuda:\n    is_available = lambda: False\n__version__ = '2+cpu'",
            "torch 2+cpu finds no CUDA device",
        ),
    ],
)
def test_it_is_skipped_without_a_device_and_fails_beside_one(
    tmp_path: Path, torch: str | None, why: str
):
    status, line = run(tmp_path, torch, has_device=False)
    assert status == 0
    assert line.startswith("test: SKIPPED: ")
    assert why in line
    status, line = run(tmp_path, torch, has_device=True)
    assert status == 1
    assert line.startswith("test: FAILED: ")
    assert why in line
