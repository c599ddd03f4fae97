import pytest

from tensorcast.schema.guesses import NAMED_MAX, guess, name_choices, suggest


@pytest.mark.parametrize(
    ("word", "found"),
    [("opration", "operation"), ("emt", "emit"), ("xyz", ""), ("", ""), ("emit", "emit")],
)
def test_the_name_that_is_most_like_it(word, found):
    assert guess(word, ("operation", "emit", "map")) == found


def test_the_end_of_a_sentence():
    assert suggest("emt", ["emit"]) == "; did you mean 'emit'?"
    assert suggest("nothing like it", ["emit"]) == ""


def test_not_too_many_are_named():
    assert name_choices(["a", "b"]) == "a, b"
    assert name_choices(map(str, range(NAMED_MAX + 1))).endswith("39, ...")
