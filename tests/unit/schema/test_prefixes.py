import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.prefixes import (
    PREFIX_BYTES,
    TOKENS_MAX,
    name_prefixes,
    next_prefix,
    root_prefix,
)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_names_are_the_same_in_every_release():
    names = name_prefixes([1, 2, 3, 4, 5], 2)
    assert [name.hex() for name in names] == [
        next_prefix(root_prefix(2), (1, 2)).hex(),
        next_prefix(next_prefix(root_prefix(2), (1, 2)), (3, 4)).hex(),
    ]
    assert names[1].hex() == "de4d786e001a19d452344ad668c8deb2"


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_prompts_that_begin_alike_share_names_and_no_others(one, other, size):
    names, others = name_prefixes(one, size), name_prefixes(other, size)
    assert len(names) == len(one) // size
    for place, (name, its) in enumerate(zip(names, others, strict=False), 1):
        assert (name == its) == (one[: place * size] == other[: place * size])
    assert all(len(name) == PREFIX_BYTES for name in names)


def test_what_a_block_depends_on_is_in_its_name():
    plain = name_prefixes([1, 2, 3, 4], 2)
    variants = [
        name_prefixes([1, 2, 3, 4], 2, salt="s"),
        name_prefixes([1, 2, 3, 4], 2, lora="s"),
        name_prefixes([1, 2, 3, 4], 2, lora="s", salt="s"),
        name_prefixes([1, 2, 3, 4], 4),
    ]
    last = [names[-1] for names in (plain, *variants)]
    assert len(set(last)) == len(last)


@pytest.mark.parametrize(
    ("tokens", "size"),
    [([1], 0), ([1], -1), ([-1, 2], 2), ([2**32, 2], 2), ([0] * (TOKENS_MAX + 1), 2)],
)
def test_what_is_no_prompt(tokens, size):
    with pytest.raises(InvalidArgument):
        name_prefixes(tokens, size)
