"""Fixtures for tests with real engines; they are skipped where `scripts/engines` was not run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import engine
from models import tiny_model


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The tiny model with the weights of seed 0."""
    return tiny_model()


@pytest.fixture(scope="module")
def start_engine() -> Iterator[Callable[..., engine.Engine]]:
    """`engine.start` in a folder of the module; whatever was started ends with the module."""
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-engines-"))
    started: list[engine.Engine] = []

    def start(model: Path, *flags: str, **options: object) -> engine.Engine:
        started.append(engine.launch(model, folder, *flags, **options))
        return started[-1].wait_ready()

    try:
        yield start
    finally:
        for one in started:
            one.stop()
        shutil.rmtree(folder, ignore_errors=True)
