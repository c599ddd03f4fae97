"""Prints what commands give back, in the format that was asked for. The only place that prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, TextIO, assert_never

import msgspec

from tensorcast.cli.output import (
    Answer,
    Block,
    Fields,
    Flow,
    Format,
    Heading,
    Note,
    Nothing,
    Result,
    Table,
)
from tensorcast.cli.session import Session
from tensorcast.schema.errors import TensorCastError

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 100_000
"""Tables on a pipe are never wrapped: a line for each row."""

FOLDED_COLUMNS = 24
"""Long text is folded into no less than so many columns."""

_STYLES = {
    **dict.fromkeys(("up", "ready", "succeeded", "ok", "sealed", "set"), "green"),
    **dict.fromkeys(
        ("filling", "issued", "running", "starting", "waiting", "restarting"), "yellow"
    ),
    **dict.fromkeys(("degraded", "evicting", "cordoned", "draining", "warn", "left"), "yellow"),
    **dict.fromkeys(("failed", "lost", "corrupt", "down", "fail", "removed", "cancelled"), "red"),
}


def render(result: Result, session: Session) -> None:
    """Print a result to standard output, in the format of the session."""
    match result:
        case Answer():
            _render_answer(result, session)
        case Flow():
            _render_flow(result, session)
        case Nothing():
            pass
        case _:
            assert_never(result)


def render_error(error: TensorCastError, session: Session) -> None:
    """Print one error to standard error: a sentence, or an object for machines."""
    output = session.options.output
    if output is Format.TABLE:
        print(f"Error: {error}", file=session.world.err)
        return
    body = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    details = {
        name: value
        for name in ("artifact", "node", "operation")
        if (value := getattr(error, name)) is not None
    }
    body["error"].update(details)
    text = to_yaml(body) if output is Format.YAML else to_json(body, pretty=False) + "\n"
    session.world.err.write(text)


def to_json(data: object, *, pretty: bool) -> str:
    """Data as JSON text. What is not text (a path that is not UTF-8) is replaced by U+FFFD."""
    try:
        encoded = msgspec.json.encode(data)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(data), ensure_ascii=False)
        encoded = text.encode(errors="surrogatepass").decode(errors="replace").encode()
    return (msgspec.json.format(encoded, indent=2) if pretty else encoded).decode()


def to_yaml(data: object) -> str:
    """Data as a YAML document."""
    import yaml

    plain: object = json.loads(to_json(data, pretty=False))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _render_answer(answer: Answer, session: Session) -> None:
    out, output = session.world.out, session.options.output
    match output:
        case Format.JSON:
            out.write(to_json(answer.data, pretty=True) + "\n")
        case Format.YAML:
            out.write(to_yaml(answer.data))
        case Format.NDJSON:
            items = answer.data if isinstance(answer.data, list | tuple) else (answer.data,)
            _write_lines(out, (to_json(item, pretty=False) for item in items))
        case Format.TABLE if session.options.quiet:
            _write_lines(out, answer.brief)
        case Format.TABLE:
            _print_blocks(answer.blocks(), session)
        case _:
            assert_never(output)


def _render_flow(flow: Flow, session: Session) -> None:
    out, output = session.world.out, session.options.output
    items = (item for page in flow.pages for item in page)
    match output:
        case Format.JSON:
            _write_array(out, items)
        case Format.YAML:
            _write_sequence(out, items)
        case Format.NDJSON:
            _write_lines(out, (to_json(item, pretty=False) for item in items))
        case Format.TABLE if session.options.quiet:
            _write_lines(out, (flow.brief(item) for item in items))
        case Format.TABLE:
            _print_pages(flow, session)
        case _:
            assert_never(output)


def _write_lines(out: IO[str], lines: Iterable[str]) -> None:
    """Each line is flushed: who reads from a pipe sees it at once."""
    for line in lines:
        out.write(line + "\n")
        out.flush()


def _write_array(out: TextIO, items: Iterator[object]) -> None:
    """One JSON array, written as the items come."""
    separator = "["
    for item in items:
        out.write(f"{separator}\n  {to_json(item, pretty=False)}")
        separator = ","
    out.write("[]\n" if separator == "[" else "\n]\n")


def _write_sequence(out: TextIO, items: Iterator[object]) -> None:
    """One YAML sequence, written as the items come."""
    is_empty = True
    for item in items:
        out.write(to_yaml([item]))
        is_empty = False
    if is_empty:
        out.write("[]\n")


def _print_pages(flow: Flow, session: Session) -> None:
    console = make_console(session)
    is_first = True
    for page in flow.pages:
        if page:
            table = flow.table(page)
            _print_table(table, console, has_head=is_first)
            is_first = False
    if is_first:
        console.print(flow.empty)
    if closing := flow.closing():
        console.print(closing)


def _print_blocks(blocks: Sequence[Block], session: Session) -> None:
    console = make_console(session)
    for block in blocks:
        match block:
            case Table():
                _print_table(block, console, has_head=block.has_head)
            case Fields():
                _print_fields(block, console)
            case Note():
                console.print(block.text)
            case Heading():
                console.print(f"\n{block.text}", style="bold")
            case _:
                assert_never(block)


def shows_color(session: Session) -> bool:
    """Whether nobody has forbidden colours, by option or variable."""
    return session.options.color and not session.world.environ.get("NO_COLOR")


def make_console(session: Session) -> Console:
    """A console for standard output: colours on a terminal, unbroken lines on a pipe."""
    from rich.console import Console

    out = session.world.out
    return Console(
        file=out,
        # Without colours nothing else is sent either: bold is an escape too.
        color_system="auto" if shows_color(session) else None,
        width=None if out.isatty() else PIPE_COLUMNS,
        soft_wrap=not out.isatty(),
        highlight=False,
        markup=False,
        emoji=False,
    )


def _print_table(table: Table, console: Console, *, has_head: bool) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    if not table.rows:
        console.print(table.empty)
        return
    drawn = RichTable(box=None, pad_edge=False, show_header=has_head, padding=(0, 2, 0, 0))
    for title in table.titles:
        drawn.add_column(
            title.upper(),
            justify="right" if title in table.right else "left",
            no_wrap=title not in table.fold,
            overflow="fold",
            header_style="bold",
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    columns = console.width
    if least_columns(table) > columns:
        console.width = PIPE_COLUMNS  # nothing is ever cut: the terminal breaks the lines itself
    with console.capture() as captured:
        console.print(drawn)
    console.width = columns
    _write_lines(console.file, (line.rstrip() for line in captured.get().splitlines()))


def least_columns(table: Table) -> int:
    """How wide a terminal must be to show a table well, its long texts folded. Pure."""
    widths = [
        max(len(title), *(len(row[i]) for row in table.rows))
        for i, title in enumerate(table.titles)
    ]
    return sum(
        (min(width, FOLDED_COLUMNS) if title in table.fold else width) + 2
        for title, width in zip(table.titles, widths, strict=True)
    )


def _print_fields(fields: Fields, console: Console) -> None:
    from rich.text import Text

    pairs = [(name, value) for name, value in fields.pairs if value]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        text = Text(f"{name:<{width}}  ", style="bold")
        text.append(value, style=_STYLES.get(value, "not bold"))
        console.print(text)
