from __future__ import annotations

import io

import pytest

from cli_samples import FakeClient, Terminal
from tensorcast.cli.progress import NoBar, RichBar
from tensorcast.cli.session import Options, Session, World


@pytest.mark.parametrize(
    ("out", "err", "quiet", "shows"),
    [
        (Terminal, Terminal, False, True),
        (Terminal, Terminal, True, False),
        (io.StringIO, Terminal, False, False),
        (Terminal, io.StringIO, False, False),
    ],
)
def test_progress_is_for_a_terminal(
    out: type[io.StringIO], err: type[io.StringIO], quiet: bool, shows: bool
) -> None:
    session = Session(World(environ={}, out=out(), err=err()), Options(quiet=quiet))
    assert session.shows_progress == shows
    with session.progress("work") as bar:
        assert isinstance(bar, RichBar if shows else NoBar)
        bar.advance_to(1, 2)
    assert ("work" in session.world.err.getvalue()) == shows


def test_the_client_is_of_the_context_and_is_closed() -> None:
    closed: list[bool] = []

    class Closing(FakeClient):
        def __exit__(self, *_: object) -> None:
            closed.append(True)

    asked: list[tuple[str | None, str | None]] = []

    def connect(context: str | None, node: str | None) -> FakeClient:
        asked.append((context, node))
        return Closing()

    session = Session(World(connect=connect, environ={}), Options(context="lab"))
    with pytest.raises(ZeroDivisionError), session.client("n2"):
        raise ZeroDivisionError
    assert (asked, closed) == ([("lab", "n2")], [True])
