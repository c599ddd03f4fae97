"""What is typed at the prompt of a walk."""

import io

import pytest

from tensorcast.cli.walk import asker, parse_answer


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("", ("quit", 0)),
        ("\n", ("forward", 0)),
        (" N \n", ("forward", 0)),
        ("b\n", ("back", 0)),
        ("q\n", ("quit", 0)),
        ("g 12\n", ("to", 12)),
        ("12\n", ("to", 12)),
        ("g x\n", None),
        ("what now\n", None),
    ],
)
def test_an_answer(text: str, step: tuple[str, int] | None) -> None:
    assert parse_answer(text) == step


def test_it_asks_until_it_understands() -> None:
    told = io.StringIO()
    ask = asker(io.StringIO("?\n??\nb\n"), told)
    assert ask() == ("back", 0)
    assert told.getvalue().count("next") == 3
    assert ask() == ("quit", 0)
