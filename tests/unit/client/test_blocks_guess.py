"""Which node is asked first: only who had the last blocks of the space, and more rarely after each
wrong guess."""

from __future__ import annotations

from tensorcast.client.blocks_guess import GUESSED_MAX, SPACES_MAX, SURE, BlockGuesses
from tensorcast.schema.blocks import pack_keys

A, B = "10.0.0.1:7000", "10.0.0.2:7000"


def keys_of(count: int = 1, space: str = "m") -> list[bytes]:
    return pack_keys(space, [bytes([n]) * 8 for n in range(count)])


def learn(guesses: BlockGuesses, holder: str, times: int = SURE, space: str = "m") -> None:
    for _ in range(times):
        guesses.learn(keys_of(space=space), {0: (holder, B)}, {0})


def test_who_had_the_last_blocks_is_asked_first():
    guesses = BlockGuesses()
    assert guesses.address(keys_of()) is None
    learn(guesses, A, SURE - 1)
    assert guesses.address(keys_of()) is None
    learn(guesses, A, 1)
    assert guesses.address(keys_of()) == A
    assert guesses.address(keys_of(space="other")) is None
    assert guesses.address([]) is None


def test_many_blocks_are_not_guessed():
    guesses = BlockGuesses()
    learn(guesses, A)
    assert guesses.address(keys_of(GUESSED_MAX)) == A
    assert guesses.address(keys_of(GUESSED_MAX + 1)) is None


def test_blocks_of_several_nodes_or_of_nobody_make_no_trail():
    for missing, arrived in (
        ({0: (A,), 1: (B,)}, {0, 1}),
        ({0: (A,), 1: ()}, {0}),
        ({0: (A,), 1: (A,)}, {0}),
        ({0: ()}, set()),
    ):
        guesses = BlockGuesses()
        learn(guesses, A)
        guesses.learn(keys_of(2), missing, arrived)
        assert guesses.address(keys_of()) is None


def test_another_holder_begins_anew():
    guesses = BlockGuesses()
    learn(guesses, A)
    learn(guesses, B, 1)
    assert guesses.address(keys_of()) is None
    learn(guesses, B, SURE - 1)
    assert guesses.address(keys_of()) == B


def test_each_wrong_guess_doubles_what_it_takes():
    guesses = BlockGuesses()
    learn(guesses, A)
    guesses.judge(keys_of(), is_right=False)
    assert guesses.address(keys_of()) is None
    learn(guesses, A, 2 * SURE - 1)
    assert guesses.address(keys_of()) is None
    learn(guesses, A, 1)
    assert guesses.address(keys_of()) == A
    guesses.judge(keys_of(), is_right=True)
    guesses.judge(keys_of(), is_right=False)
    learn(guesses, A, 2 * SURE)
    assert guesses.address(keys_of()) == A


def test_what_is_known_of_spaces_is_bounded():
    guesses = BlockGuesses()
    for n in range(SPACES_MAX + 1):
        learn(guesses, A, space=f"s{n}")
    assert len(guesses._trails) <= SPACES_MAX
    guesses.judge(keys_of(space="s0"), is_right=False)  # forgotten meanwhile
    assert guesses.address(keys_of(space=f"s{SPACES_MAX}")) == A
