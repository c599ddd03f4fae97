"""Numbers of things, and the end of a sentence."""

import pytest

from tensorcast.schema.wording import end_sentence, tell_count


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1000, "1000 nodes")]
)
def test_one_is_told_as_one(count, told):
    assert tell_count(count, "node") == told


def test_a_plural_of_its_own():
    assert tell_count(2, "copy", "copies") == "2 copies"
    assert tell_count(1, "copy", "copies") == "1 copy"


@pytest.mark.parametrize("text", ["it ended", "it ended.", "it ended. "])
def test_a_sentence_has_one_full_stop(text):
    assert end_sentence(text) == "it ended."


def test_other_marks_end_a_sentence_too():
    assert end_sentence("is it there?") == "is it there?"
