"""Differences as people read them."""

import pytest

from cli_samples import ART
from tensorcast.cli.changes import describe_diff, show, summarize, table_changes
from tensorcast.cli.output import Heading, Note
from tensorcast.schema.api_past import Change, DiffInfo, FieldChange


def change(kind: str, name: str, how: str, /, **fields: tuple[object, object]) -> Change:
    told = tuple(FieldChange(name=n, before=a, after=b) for n, (a, b) in fields.items())
    return Change(kind=kind, id=name, change=how, fields=told, seq=7)


CHANGES = (
    change("artifact", ART, "added", kind=(None, "weights"), bytes=(None, 3)),
    change("key", "k", "removed", artifact=(ART, None)),
    change("replica", f"{ART}:n1:dram", "changed", state=("filling", "ready")),
)


def test_a_line_for_each_field() -> None:
    rows = table_changes(CHANGES).rows
    short = ART[:12]
    assert [row[:4] for row in rows] == [
        ("+", short, "7", "kind"),
        ("", "", "", "bytes"),
        ("-", "k", "7", "artifact"),
        ("~", f"{short} n1/dram", "7", "state"),
    ]
    assert [row[4:] for row in rows] == [
        ("-", "weights"),
        ("-", "3"),
        (short, "-"),
        ("filling", "ready"),
    ]


def test_kinds_have_headings() -> None:
    blocks = describe_diff(DiffInfo(from_seq=1, to_seq=9, total=3, changes=CHANGES))
    notes = [block.text for block in blocks if isinstance(block, Heading | Note)]
    assert notes == [
        "1 added, 1 removed, 1 changed, from event 1 to event 9:",
        *("Artifacts", "Keys", "Replicas"),
    ]


def test_a_step_in_a_line() -> None:
    assert summarize(CHANGES[:1]) == "+artifact: kind=weights, bytes=3"
    assert summarize(CHANGES[2:]) == "~replica: state filling → ready"
    assert summarize(()) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "true"),
        ({"a": 1}, '{"a": 1}'),
        (ART, ART[:12]),
        ("x" * 99, "x" * 59 + "…"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert show(value) == text
