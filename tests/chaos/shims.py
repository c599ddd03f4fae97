"""A library that is loaded into processes and lies to them about time and disks (`shim.c`)."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


def build(folder: Path) -> Path | None:
    """The library, compiled into the folder; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    library.chmod(0o755)
    return library


class Shim:
    """What one process is told. Without a library nothing happens."""

    def __init__(self, library: Path | None, control: Path) -> None:
        control.write_bytes(bytes(16))
        control.chmod(0o644)
        self.is_there = library is not None
        self.environ: dict[str, str] = {}
        if library is not None:
            self.environ = {"LD_PRELOAD": str(library), "CHAOS_SHIM": str(control)}
        with control.open("r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), 16)

    def set(self, *, step_s: int = 0, fsync_s: float = 0.0) -> None:
        """Steps its wall clock from the true time, and slows its fsync."""
        self._mapping[:] = struct.pack("qq", step_s, int(fsync_s * 1e6))

    def close(self) -> None:
        self._mapping.close()
