"""The fixture that calls `tcctl`."""

from __future__ import annotations

import pytest

from cli_samples import Tcctl


@pytest.fixture
def tcctl() -> Tcctl:
    return Tcctl()
