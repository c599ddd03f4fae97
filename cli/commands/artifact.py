"""`tcctl artifact`: what is stored, where, and how it came there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import typer

from tensorcast.cli.events import event_flow
from tensorcast.cli.exits import Failed
from tensorcast.cli.lineage import describe_lineage
from tensorcast.cli.output import Answer, Flow, Note, Result, shorten
from tensorcast.cli.session import session_of
from tensorcast.cli.tables import (
    describe_artifact,
    table_artifacts,
    table_operations,
    table_replicas,
    table_tensors,
)
from tensorcast.cli.units import format_seconds, parse_seconds
from tensorcast.schema.api import ArtifactInfo, OperationInfo, ReplicaInfo
from tensorcast.schema.errors import NotFound

app = typer.Typer(
    help="What is stored: content, replicas, history.", add_completion=False, rich_markup_mode=None
)


class VerifyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` prints; `ok` means that all operations succeeded."""

    artifact: str
    ok: bool
    operations: tuple[OperationInfo, ...]
    seconds: float


What = Annotated[str, typer.Argument(metavar="KEY|ID", help="A key, an id or its beginning.")]


@app.command()
def ls(
    call: typer.Context,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only those with a replica there.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="Only sealed or removed ones.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 1000,
) -> Result:
    """List the artifacts, newest first."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.artifacts(node=node, status=state, limit=limit)
    now = session.now()
    return Answer(
        data=found,
        blocks=lambda: (table_artifacts(found, now),),
        brief=tuple(one.id for one in found),
    )


@app.command()
def show(call: typer.Context, what: What) -> Result:
    """Show one artifact: its kind, size, labels, keys and replicas."""
    session = session_of(call)
    with session.client() as client:
        info = client.api.artifact(what)
    return Answer(data=info, blocks=lambda: describe_artifact(info), brief=(info.id,))


@app.command()
def where(call: typer.Context, what: What) -> Result:
    """Show where its replicas are, in which tier and state, and how full they are."""
    session = session_of(call)
    with session.client() as client:
        info = client.api.artifact(what)
    return Answer(
        data=info,
        blocks=lambda: (table_replicas(info.replicas),),
        brief=tuple(f"{one.node}/{one.tier}" for one in info.replicas),
    )


@app.command()
def tensors(call: typer.Context, what: What) -> Result:
    """List its tensors: name, dtype, shape and place in the byte space."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.tensors(what)
    return Answer(
        data=found,
        blocks=lambda: (table_tensors(found),),
        brief=tuple(one.name for one in found),
    )


@app.command()
def history(
    call: typer.Context,
    what: What,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most so many events.")
    ] = 100_000,
    newest: Annotated[bool, typer.Option("--newest", help="The last ones, not the first.")] = False,
) -> Flow:
    """Show every event about it, with who caused it and why."""
    session = session_of(call)
    with session.client() as client:
        events = client.api.history(what, limit=limit, newest=newest)
    return event_flow(iter([events]))


@app.command()
def lineage(call: typer.Context, what: What) -> Result:
    """Show where it comes from, which keys pointed to it when, and which engines served it when."""
    session = session_of(call)
    with session.client() as client:
        info = client.api.lineage(what)
    return Answer(data=info, blocks=lambda: describe_lineage(info), brief=(info.artifact,))


@app.command()
def verify(
    call: typer.Context,
    what: What,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only the replicas of this node.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Give up after so long.")] = "5m",
) -> Result:
    """Check the bytes of every replica against their digests, and wait for the result."""
    session = session_of(call)
    begin = time.monotonic()
    with session.client() as client, session.progress("verify"):
        checked = client.verify(what, node=node, timeout=parse_seconds(timeout), check=False)
        replicas: tuple[ReplicaInfo, ...] = ()
        with suppress(NotFound):  # it may be removed by now
            replicas = client.api.artifact(checked[0].info.artifact).replicas
    operations = tuple(one.info for one in checked)
    took_s = time.monotonic() - begin
    failed = [one for one in operations if one.status != "succeeded"]
    info = VerifyInfo(
        artifact=operations[0].artifact,
        ok=not failed,
        operations=operations,
        seconds=round(took_s, 6),
    )
    places = describe_places(operations, replicas)
    sentence = f"All bytes match their digests on {places} ({format_seconds(took_s)})."
    now = session.now()
    return Answer(
        data=info,
        blocks=lambda: (table_operations(operations, now) if failed else Note(sentence),),
        brief=(info.artifact,),
        error=_explain(failed) if failed else None,
    )


def describe_places(operations: Sequence[OperationInfo], replicas: Sequence[ReplicaInfo]) -> str:
    """Where operations checked replicas: each node once, with its tiers, or with how many they were
    when other replicas have come or gone meanwhile."""
    found = []
    for node in dict.fromkeys(one.node for one in operations):
        count = sum(one.node == node for one in operations)
        tiers = sorted(one.tier for one in replicas if one.node == node and one.state == "ready")
        many = f" ({count} replicas)" if count > 1 else ""
        found.append(f"{node} ({', '.join(tiers)})" if len(tiers) == count else f"{node}{many}")
    return ", ".join(found)


def _explain(failed: list[OperationInfo]) -> Failed:
    """The work was done and came out badly, whatever went wrong on a node."""
    from tensorcast.client.faults import failures_of

    error = failures_of(failed)
    return Failed(
        error.message,
        hint=error.hint,
        artifact=error.artifact,
        node=error.node,
        operation=error.operation,
    )


@app.command()
def pin(call: typer.Context, what: What) -> Result:
    """Keep all its replicas from eviction until it is unpinned."""
    session = session_of(call)
    with session.client() as client:
        client.api.pin(what)
        info = client.api.artifact(what)
    return _done(info, f"{shorten(info.id)} is pinned.")


@app.command()
def unpin(call: typer.Context, what: What) -> Result:
    """Allow eviction of its replicas again."""
    session = session_of(call)
    with session.client() as client:
        client.api.unpin(what)
        info = client.api.artifact(what)
    return _done(info, f"{shorten(info.id)} is not pinned.")


@app.command()
def rm(
    call: typer.Context,
    what: What,
    force: Annotated[
        bool, typer.Option("--force", help="Even while keys point to it or leases hold it.")
    ] = False,
) -> Result:
    """Remove it: nobody can use it any more, and its replicas are evicted."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.artifact(what)
        client.api.remove_artifact(found.id, force=force)
        info = client.api.artifact(found.id)  # the key that was named may be gone with it
    return _done(info, f"{shorten(info.id)} is removed.")


def _done(info: ArtifactInfo, sentence: str) -> Answer:
    return Answer(data=info, blocks=lambda: (Note(sentence),), brief=(info.id,))
