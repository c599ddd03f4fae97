from __future__ import annotations

from cli_samples import Terminal
from tensorcast.cli.progress import NoBar, show_bar


def test_the_bar_tells_what_is_done_and_goes_away() -> None:
    stream = Terminal()
    with show_bar("put [x]", stream, color=False) as bar:
        bar.advance_to(0, 0)
        bar.advance_to(1 << 20, 2 << 20)
    assert "put [x]" in stream.getvalue()


def test_no_bar_shows_nothing() -> None:
    NoBar().advance_to(1, 2)
