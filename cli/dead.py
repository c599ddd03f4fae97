"""`tcctl audit dead`: the events that the read models could not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from tensorcast.cli.exits import Exit
from tensorcast.cli.output import Answer, Block, Fields, Note, Result, Table
from tensorcast.cli.session import session_of
from tensorcast.cli.units import format_second
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.api_store import DeadLetter, DeadPage
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import Seq
from tensorcast.schema.wording import tell_count

ABOUT = "Events that the read models could not take: parked, with those that wait behind them."
app = typer.Typer(help=ABOUT, add_completion=False, rich_markup_mode=None)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What `show` prints: the letters at a position, and the event of the log."""

    letters: tuple[DeadLetter, ...]
    event: EventInfo | None


@app.callback()
def dead() -> None:
    """Events that the read models could not take: parked, with those that wait behind them."""


@app.command("ls")
def list_(
    call: typer.Context,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="After this position.")] = 0,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="At most so many.")
    ] = 1000,
) -> Result:
    """List the parked events; the history has them all the same."""
    with session_of(call).client() as client:
        page = client.api.dead_letters(after=after, limit=limit)
    return _answer(page)


@app.command()
def show(call: typer.Context, seq: Annotated[int, typer.Argument(min=1, metavar="SEQ")]) -> Result:
    """Show a parked event, and why it is."""
    with session_of(call).client() as client:
        page = client.api.dead_letters(seq)
        if not page.letters:
            raise NotFound(
                f"No event at position {seq} is parked.", hint="`tcctl audit dead ls` lists them."
            )
        is_in_log = any(letter.log == "log" for letter in page.letters)
        query = AuditQuery(since=Seq(seq - 1), limit=1)
        found = client.api.audit(query) if is_in_log else ()
    shown = Shown(letters=page.letters, event=found[0] if found else None)
    return Answer(data=shown, blocks=lambda: _describe(shown), brief=(str(seq),))


@app.command()
def retry(call: typer.Context) -> Result:
    """Try all parked events again, now: after a mend, or with a newer release."""
    with session_of(call).client() as client:
        page = client.api.retry_dead_letters()
    return _answer(page, exit_code=Exit.FAILED if page.total else Exit.DONE)


def _answer(page: DeadPage, exit_code: int = Exit.DONE) -> Answer:
    parked = f"{tell_count(page.total, 'event')} {'is' if page.total == 1 else 'are'} parked."
    said = parked if page.total else "No event is parked."
    return Answer(
        data=page,
        blocks=lambda: (*((_table(page.letters),) if page.letters else ()), Note(said)),
        brief=tuple(str(letter.seq) for letter in page.letters),
        exit_code=exit_code,
    )


def _table(letters: Sequence[DeadLetter]) -> Table:
    return Table(
        titles=("log", "seq", "type", "about", "fault", "why", "tried"),
        rows=[
            (
                letter.log,
                str(letter.seq),
                letter.type,
                f"{letter.kind} {letter.id}",
                letter.fault,
                letter.reason,
                format_second(letter.tried_at) if letter.tried_at else "",
            )
            for letter in letters
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"about", "why"}),
    )


def _describe(shown: Shown) -> Sequence[Block]:
    event = shown.event
    if event is None:
        return (_table(shown.letters),)
    fields = (
        ("id", event.id),
        ("at", format_second(event.at)),
        ("actor", event.actor),
        ("cause", event.cause or ""),
        ("data", bytes(event.data).decode(errors="replace")),
    )
    return (_table(shown.letters), Fields(fields))
