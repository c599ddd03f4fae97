"""A walk through the history, event by event: `tcctl replay --step`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TextIO

import msgspec

from tensorcast.cli.changes import StepInfo
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.api_past import Change
from tensorcast.schema.ids import Seq

if TYPE_CHECKING:
    from tensorcast.client import Client

PROMPT: Final = "[Enter] next, b back, g SEQ go to, q quit: "
Step = tuple[str, int]
"""Where to go: forward, back, to (a position), quit."""


def parse_answer(text: str) -> Step | None:
    """What somebody typed at the prompt; None when it makes no sense. An end of the input quits."""
    if not text:
        return "quit", 0
    words = text.lower().split()
    match words:
        case [] | ["n" | "next" | "f" | "forward"]:
            return "forward", 0
        case ["b" | "p" | "back" | "previous"]:
            return "back", 0
        case ["q" | "quit" | "exit"]:
            return "quit", 0
        case ["g" | "go", number] if number.isdigit():
            return "to", int(number)
        case [number] if number.isdigit():
            return "to", int(number)
    return None


def walk(
    client: Client,
    query: AuditQuery,
    begin: Seq,
    limit: int,
    ask: Callable[[], Step] | None,
) -> Iterator[Sequence[StepInfo]]:
    """The event at `begin` (or the next that matches) and those that follow, one a page. `ask` says
    after each where to go; without it the walk goes forward to the end."""
    step: Step = ("to", begin)
    here = begin
    for _ in range(limit):
        found = _find(client, query, here, step)
        if found is not None:
            here = found.seq
            yield (StepInfo(event=found, changes=_changes(client, found)),)
        elif ask is None:
            return
        if ask is None:
            step = ("forward", 0)
        elif (step := ask())[0] == "quit":
            return


def _find(client: Client, query: AuditQuery, here: Seq, step: Step) -> EventInfo | None:
    direction, number = step
    if direction == "back":
        query = msgspec.structs.replace(query, before=here, newest=True, limit=1)
    else:
        since = here if direction == "forward" else Seq(max(0, number - 1))
        query = msgspec.structs.replace(query, since=since, limit=1)
    found = client.api.audit(query)
    return found[0] if found else None


def _changes(client: Client, event: EventInfo) -> tuple[Change, ...]:
    return client.api.diff(Seq(event.seq - 1), event.seq).changes


def asker(source: TextIO, target: TextIO) -> Callable[[], Step]:
    """Asks a person where to go until the answer makes sense."""

    def ask() -> Step:
        while True:
            target.write(PROMPT)
            target.flush()
            step = parse_answer(source.readline())
            if step is not None:
                return step

    return ask
