"""The plugin as vLLM finds and calls it; needs no vLLM."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

from tensorcast.engines.identity import LIFE_VARIABLE, NAME_VARIABLE, URL_VARIABLE
from tensorcast.engines.vllm import plugin


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What a plugin writes into the environment ends with each test."""
    for name in (NAME_VARIABLE, LIFE_VARIABLE, URL_VARIABLE):
        monkeypatch.setenv(name, "of-a-test")


def test_vllm_finds_it_by_its_entry_point():
    (found,) = entry_points(group="vllm.general_plugins", name="tensorcast")
    assert found.load() is plugin.register


def test_it_says_which_versions_meet(caplog):
    with caplog.at_level(logging.INFO, logger="vllm.tensorcast"):
        plugin.register()
    assert version("tensorcast-taas") in caplog.text
    assert f"vLLM {plugin.engine_version()}" in caplog.text


def test_an_engine_without_tensorcast_pays_nothing_for_the_plugin():
    code = (
        "import sys; from tensorcast.engines.vllm.plugin import register; register();"
        "print([m for m in ('torch', 'vllm', 'nats', 'tensorcast.client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done
