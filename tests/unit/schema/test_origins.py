"""From what something was made, as labels and files say it."""

from tensorcast.schema.origins import (
    SOURCES_MAX,
    TEXT_MAX,
    note_origin,
    read_origins,
    split_sources,
)


def test_what_a_file_notes_is_read_as_labels():
    note = note_origin("a" * 40, "view names=x.*")
    assert note == {"made-from": "a" * 40, "made-by": "view names=x.*"}
    assert read_origins([{"format": "pt", **note}]) == note


def test_several_files_have_several_sources():
    notes = [note_origin("a", "cut"), note_origin("b", "cut"), {"format": "pt"}]
    assert read_origins(notes) == {"made-from": "a,b", "made-by": "cut"}
    assert read_origins([note_origin("a", "cut"), note_origin("a", "cast")]) == {
        "made-from": "a",
        "made-by": "cut, cast",
    }


def test_files_that_say_nothing_give_no_labels():
    assert read_origins([]) == {}
    assert read_origins([{"format": "pt"}, {"made-by": "magic"}]) == {}


def test_what_says_too_much_is_not_believed():
    assert read_origins([{"made-from": ",".join(map(str, range(SOURCES_MAX + 1)))}]) == {}
    assert read_origins([{"made-from": "a", "made-by": "x" * 5 * TEXT_MAX}]) == {}
    assert len(note_origin("a", "x" * 5 * TEXT_MAX)["made-by"]) == TEXT_MAX


def test_sources_are_split_at_commas():
    assert split_sources(" a, b@1,, ") == ("a", "b@1")
