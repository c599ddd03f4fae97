"""Verb `execute`: what users want changed."""

from __future__ import annotations

from tensorcast.controlplane.core.admission import admit, check_actor
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.log.execute import execute
from tensorcast.schema.api import Execute, Executed
from tensorcast.schema.errors import TensorCastError


async def run_command(desk: Desk, request: Execute) -> Executed:
    """Checks a command against the newest view, decides it and appends its events as one.

    Raises what `admit` and `decide` raise; a refusal is never based on a view that is older than
    the log was when the request came. Unavailable while the persister refuses the log.
    """
    check_actor(request.actor)
    desk.check_changeable()
    try:
        commands = admit(desk.follower.view, request.command, force=request.force)
    except TensorCastError:
        view = await desk.view_after(await desk.writer.last_seq())
        commands = admit(view, request.command, force=request.force)
    outcome = await execute(desk.writer, desk.follower, commands, actor=request.actor)
    return Executed(events=tuple(draft.id for draft in outcome.events), seq=outcome.seq)
