"""Verb `execute`: what users want changed."""

from __future__ import annotations

from tensorcast.controlplane.core.admission import admit, check_actor
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.log.execute import execute
from tensorcast.schema.api import Execute, Executed
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.errors import TensorCastError


async def run_command(desk: Desk, request: Execute) -> Executed:
    """Checks a command against the newest view, decides it and appends its events as one.

    Raises what `admit` and `decide` raise; a refusal is never based on a view that is older than
    the log was when the request came. Unavailable while the persister refuses the log.
    """
    check_actor(request.actor)
    desk.check_changeable()
    try:
        commands = _admit_all(desk.follower.view, request)
    except TensorCastError:
        commands = _admit_all(await desk.view_after(await desk.writer.last_seq()), request)
    outcome = await execute(desk.writer, desk.follower, commands, actor=request.actor)
    return Executed(events=tuple(draft.id for draft in outcome.events), seq=outcome.seq)


def _admit_all(view: ClusterView, request: Execute) -> tuple[Command, ...]:
    asked = (request.command, *request.further)
    return tuple(one for command in asked for one in admit(view, command, force=request.force))
