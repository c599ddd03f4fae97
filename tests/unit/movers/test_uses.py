"""What is used often, and what is forgotten."""

from __future__ import annotations

from samples import artifact_id
from tensorcast.movers.uses import Uses

A, B, C = (artifact_id(name) for name in "abc")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def use(uses: Uses, clock: Clock, *artifacts) -> None:
    for artifact in artifacts:
        clock.now += 2.0
        uses.note(artifact)


def test_the_most_popular_come_first_and_rare_ones_not_at_all():
    clock = Clock()
    uses = Uses(clock)
    use(uses, clock, A, A, A, B, B, B, B, C)
    assert uses.popular([A, B, C]) == (B, A)
    assert uses.popular([A]) == (A,)
    clock.now += 3600.0
    assert uses.popular([A, B, C]) == ()


def test_when_it_was_used_last():
    clock = Clock()
    uses = Uses(clock)
    use(uses, clock, A)
    assert uses.used_at(A) == clock.now
    assert uses.used_at(B) < 0


def test_what_is_gone_is_forgotten():
    clock = Clock()
    uses = Uses(clock)
    use(uses, clock, A, A, A, B, B, B)
    uses.keep({B})
    assert uses.popular([A, B]) == (B,)
