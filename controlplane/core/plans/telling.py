"""All steps of a plan as they are, those to come too, in the order in which they are written.
Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.controlplane.core.plans.scopes import Scope, bodies, compensation, root_scope
from tensorcast.schema.aggregates.plan import ACTIVE, Plan, StepState
from tensorcast.schema.plans import Step

Told = tuple[Scope, Step, StepState | None]


def tell_steps(plan: Plan) -> Iterator[Told]:
    """Every step that has begun or may begin as things are; a holder before what is in it. The body
    of a holder that has not begun is not told: which it will be is not known."""
    yield from _tell(root_scope(plan))


def _tell(scope: Scope) -> Iterator[Told]:
    for step in scope.steps:
        state = scope.state(step)
        yield scope, step, state
        if state is None:
            continue
        for body in bodies(scope, step, state):
            yield from _tell(body)
        undoing = compensation(scope, step)
        if undoing is not None and any(True for _ in undoing.states()):
            yield from _tell(undoing)


def count_ended(plan: Plan) -> tuple[int, int]:
    """How many of the known steps are over, and how many are known."""
    told = [state for _, _, state in tell_steps(plan)]
    ended = sum(state is not None and state.status not in ACTIVE for state in told)
    return ended, len(told)
