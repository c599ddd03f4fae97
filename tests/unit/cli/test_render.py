"""The four formats, of whole answers and of flows, on a terminal and on a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pytest
import yaml

from cli_samples import Terminal
from tensorcast.cli.output import Answer, Fields, Flow, Format, Heading, Note, Nothing, Table
from tensorcast.cli.render import (
    FOLDED_COLUMNS,
    least_columns,
    render,
    render_error,
    to_json,
    to_yaml,
)
from tensorcast.cli.session import Options, Session, World
from tensorcast.schema.errors import Conflict

ROWS = [{"name": "a", "size": 1}, {"name": "b", "size": 22}]
TABLE = Table(
    titles=("name", "size", "state"),
    rows=(("a", "1", "ready"), ("b", "22", "lost")),
    right=frozenset({"size"}),
)


def make_session(output: Format, *, terminal: bool = False, **options: bool) -> Session:
    make = Terminal if terminal else io.StringIO
    world = World(environ={}, out=make(), err=make())
    return Session(world, Options(output=output, **options))


def shown(result: Answer | Flow | Nothing, session: Session) -> str:
    render(result, session)
    return session.world.out.getvalue()


ANSWER = Answer(data=ROWS, blocks=lambda: (TABLE,), brief=("a", "b"))


def test_json_and_yaml_hold_the_same_data() -> None:
    assert msgspec.json.decode(shown(ANSWER, make_session(Format.JSON))) == ROWS
    assert yaml.safe_load(shown(ANSWER, make_session(Format.YAML))) == ROWS


def test_ndjson_has_one_thing_a_line() -> None:
    lines = shown(ANSWER, make_session(Format.NDJSON)).splitlines()
    assert [msgspec.json.decode(line) for line in lines] == ROWS
    single = Answer(data=ROWS[0], blocks=lambda: ())
    assert shown(single, make_session(Format.NDJSON)) == '{"name":"a","size":1}\n'


def test_a_table_on_a_pipe_has_a_line_for_each_row() -> None:
    long = "x" * 500
    table = Table(titles=("name", "text"), rows=(("a", long),), fold=frozenset({"text"}))
    text = shown(Answer(data=[], blocks=lambda: (table,)), make_session(Format.TABLE))
    assert [line.split() for line in text.splitlines()] == [["NAME", "TEXT"], ["a", long]]
    assert all(line == line.rstrip() for line in text.splitlines())


def test_columns_of_numbers_are_right_aligned() -> None:
    lines = shown(ANSWER, make_session(Format.TABLE)).splitlines()
    assert lines == ["NAME  SIZE  STATE", "a        1  ready", "b       22  lost"]


def test_a_terminal_gets_colours_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = shown(ANSWER, make_session(Format.TABLE, terminal=True, color=False))
    coloured = shown(ANSWER, make_session(Format.TABLE, terminal=True))
    assert "\x1b[32mready" in coloured
    assert "\x1b" not in plain  # bold is an escape too
    assert "\x1b" not in shown(ANSWER, make_session(Format.TABLE))


@pytest.mark.parametrize(("columns", "lines"), [(60, 5), (30, 2)])
def test_a_narrow_terminal_folds_long_text_and_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, columns: int, lines: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name, text = "n" * 20, "x" * 120
    table = Table(titles=("name", "text"), rows=((name, text),), fold=frozenset({"text"}))
    session = make_session(Format.TABLE, terminal=True, color=False)
    printed = shown(Answer(data=[], blocks=lambda: (table,)), session)
    assert (printed.count("n"), printed.count("x")) == (20, 120)
    assert len(printed.splitlines()) == lines


def test_the_least_width_counts_folded_columns() -> None:
    assert least_columns(TABLE) == 4 + 2 + 4 + 2 + 5 + 2
    long = Table(titles=("text",), rows=(("x" * 99,),), fold=frozenset({"text"}))
    assert least_columns(long) == FOLDED_COLUMNS + 2


def test_quiet_leaves_the_ids() -> None:
    assert shown(ANSWER, make_session(Format.TABLE, quiet=True)) == "a\nb\n"
    assert "size" in shown(ANSWER, make_session(Format.JSON, quiet=True))


def test_blocks_for_people() -> None:
    blocks = (Fields((("id", "abc"), ("none", ""))), Heading("More"), Note("[that] is all"))
    text = shown(Answer(data={}, blocks=lambda: blocks), make_session(Format.TABLE))
    assert text == "id  abc\n\nMore\n[that] is all\n"


def test_an_empty_table_says_so() -> None:
    table = Table(titles=("name",), rows=(), empty="No names.")
    text = shown(Answer(data=[], blocks=lambda: (table,)), make_session(Format.TABLE))
    assert text == "No names.\n"


def make_flow(*pages: Sequence[dict[str, object]]) -> Flow:
    def draw(page: Sequence[object]) -> Table:
        return Table(titles=("name",), rows=[(str(row["name"]),) for row in page])

    return Flow(pages=iter(pages), table=draw, brief=lambda row: row["name"], empty="No rows.")


@pytest.mark.parametrize("pages", [(), (ROWS,), (ROWS[:1], (), ROWS[1:])])
def test_a_flow_is_the_same_as_a_whole(pages: tuple[list[dict[str, object]], ...]) -> None:
    rows = [row for page in pages for row in page]
    assert msgspec.json.decode(shown(make_flow(*pages), make_session(Format.JSON))) == rows
    assert yaml.safe_load(shown(make_flow(*pages), make_session(Format.YAML))) == rows
    lines = shown(make_flow(*pages), make_session(Format.NDJSON)).splitlines()
    assert [msgspec.json.decode(line) for line in lines] == rows
    names = shown(make_flow(*pages), make_session(Format.TABLE, quiet=True)).split()
    assert names == [row["name"] for row in rows]


def test_the_pages_of_a_flow_have_one_head() -> None:
    text = shown(make_flow(ROWS[:1], ROWS[1:]), make_session(Format.TABLE))
    assert text.split() == ["NAME", "a", "b"]
    assert shown(make_flow(), make_session(Format.TABLE)) == "No rows.\n"


def test_nothing_is_nothing() -> None:
    assert shown(Nothing(), make_session(Format.JSON)) == ""


def test_an_error_names_what_it_is_about() -> None:
    session = make_session(Format.JSON)
    render_error(Conflict("moved", hint="Read again.", artifact="abc"), session)
    assert msgspec.json.decode(session.world.err.getvalue()) == {
        "error": {"code": "conflict", "message": "moved", "hint": "Read again.", "artifact": "abc"}
    }


def test_encoding_keeps_the_order_of_fields() -> None:
    assert to_json({"b": 1, "a": 2}, pretty=False) == '{"b":1,"a":2}'
    assert to_yaml({"b": 1, "a": "ü"}) == "b: 1\na: ü\n"
