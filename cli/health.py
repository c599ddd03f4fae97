"""How a cluster is, from what its supervisor says and what its control plane says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tensorcast.cli.session import Session
from tensorcast.deploy.control import ServiceStatus
from tensorcast.schema.api import ClusterStatus, NodeInfo
from tensorcast.schema.errors import NotFound, TensorCastError
from tensorcast.schema.wording import end_sentence

ANSWER_S = 3.0
"""A control plane that hangs is a finding, not a reason to wait."""

State = Literal["up", "degraded", "down"]


class StatusInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `status` prints. Positions are None when nobody can tell them."""

    state: State
    services: tuple[ServiceStatus, ...]
    last_seq: int | None
    committed_seq: int | None
    scheduled_seq: int | None
    cluster: str | None
    home: str | None
    nodes: tuple[NodeInfo, ...]
    problems: tuple[str, ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out. `local` is the state that the supervisor on this machine tells (None:
    this machine runs none); `answer` what the control plane says, or `silence` why it does not."""

    home: str | None = None
    local: State | None = None
    services: tuple[ServiceStatus, ...] = ()
    answer: ClusterStatus | None = None
    silence: str = ""


def find_cluster(session: Session, home: Path, *, is_named: bool = False) -> Findings:
    """Ask the supervisor of this home, if it has one, and the control plane. A home that
    `is_named` is the one that is meant; otherwise it is that of a context.

    Raises NotFound for an unknown context.
    """
    from tensorcast.deploy.cluster import status
    from tensorcast.deploy.home import Layout, load_config

    config, named = load_config(Layout(home)), session.options.context
    if config is None and is_named and named is None:
        return Findings(home=str(home), local="down", silence=f"There is no cluster in {home}.")
    if config is None or (named not in (None, config.context) and not is_named):
        answer, silence = _ask(session, named)
        return Findings(answer=answer, silence=silence)
    found = status(home)
    answer, silence = None, ""
    if found.state != "down":
        answer, silence = _ask(session, config.context)
    return Findings(
        home=str(home),
        local=found.state,
        services=found.services,
        answer=answer,
        silence=silence,
    )


def _ask(session: Session, context: str | None) -> tuple[ClusterStatus | None, str]:
    """The answer of the control plane, or why there is none."""
    try:
        with session.world.connect(context, None) as client:
            return client.api.status(timeout=ANSWER_S), ""
    except NotFound:
        raise
    except TensorCastError as error:
        return None, str(error)


def judge(findings: Findings) -> StatusInfo:
    """The verdict on what was found. Pure."""
    answer = findings.answer
    problems = (*_troubles(findings), *(answer.problems if answer else ()))
    return StatusInfo(
        state=_state(findings, problems),
        services=findings.services,
        last_seq=answer.last_seq if answer else None,
        committed_seq=_committed(answer),
        scheduled_seq=answer.scheduled_seq if answer else None,
        cluster=answer.cluster if answer else None,
        home=findings.home,
        nodes=answer.nodes if answer else (),
        problems=problems,
    )


def _committed(answer: ClusterStatus | None) -> int | None:
    """How far Postgres is; 0 with problems stands for "nobody can tell"."""
    if answer is None or (answer.committed_seq == 0 and answer.problems):
        return None
    return answer.committed_seq


def _state(findings: Findings, problems: tuple[str, ...]) -> State:
    if findings.local == "down" or (findings.local is None and findings.answer is None):
        return "down"
    return "degraded" if problems or findings.local == "degraded" else "up"


def _troubles(findings: Findings) -> tuple[str, ...]:
    if findings.local == "down":
        what = findings.silence or f"The cluster in {findings.home} is down."
        return (f"{what} `tcctl up` starts it.",)
    services = tuple(
        end_sentence(f"{one.name} is {one.state}: {one.detail or 'no detail'}")
        for one in findings.services
        if one.state != "up"
    )
    return (*services, *((findings.silence,) if findings.silence else ()))
