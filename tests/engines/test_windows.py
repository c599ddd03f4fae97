"""Models with sliding windows: shared, or refused in a sentence."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import engine
from cluster import running_cluster
from test_connector import BLOCK, flags, prompt, reload, wait_for_hit

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]

TOKENS = 12


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[[str], engine.Engine]]:
    """Launches an engine for a kind of model, with the connector."""
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    from windows import make_windowed

    folder = Path(tempfile.mkdtemp(prefix="tc-windows-"))
    started: list[engine.Engine] = []
    try:
        with running_cluster(folder / "cluster", 1) as cluster:
            env = {k: v for k, v in cluster.env.items() if k.startswith("TENSORCAST_")}

            def launch(kind: str) -> engine.Engine:
                model = make_windowed(kind, folder / kind)
                started.append(engine.launch(model, folder / f"{kind}-e", *flags(), env=env))
                return started[-1]

            yield launch
            for one in started:
                one.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_windows_in_some_layers_are_shared(launch, kind):
    """Four times as long as the window."""
    with launch(kind).wait_ready() as one:
        ids = prompt(1000, 600)
        other = one.generate([ids[0] + 1, *ids[1:]], TOKENS)
        wanted = one.generate(ids, TOKENS, cache_salt="alone", logprobs=True)
        assert wanted.tokens != other.tokens, "what was far before does not show"
        one.generate(ids, TOKENS)
        found = wait_for_hit(lambda: reload(one, ids), 7 * BLOCK)
        assert (found.tokens, found.cached_tokens) == (wanted.tokens, 7 * BLOCK)


def test_windows_in_all_layers_are_refused_with_a_sentence(launch):
    one = launch("mistral")
    with pytest.raises(AssertionError, match="did not start"):
        one.wait_ready()
    assert "TensorCastConnector shares full attention only" in one.log_text()
