"""A short soak at each run; `run.py` beside this file does long ones."""

from __future__ import annotations

import random

import pytest

from soak.run import soak


@pytest.mark.slow
async def test_a_short_soak():
    await soak(cycles=100, seed=random.randrange(1 << 30))
