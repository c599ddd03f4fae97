"""`tcctl put`, `get` and `replicate`: bytes in, bytes out, bytes elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tensorcast.cli.exits import Failed, Usage
from tensorcast.cli.output import Answer, Fields, Result, shorten
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.tables import table_operations
from tensorcast.cli.units import (
    format_rate,
    format_seconds,
    format_size,
    parse_labels,
    parse_seconds,
    split_names,
)
from tensorcast.schema.api import OperationInfo
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.files import files_of
from tensorcast.schema.wording import tell_count

if TYPE_CHECKING:
    from tensorcast.client import Artifact, Client, Replication

app = typer.Typer(add_completion=False, rich_markup_mode=None)
What = Annotated[str, typer.Argument(metavar="KEY|ID", help="A key, an id or its beginning.")]
WAIT = "1h"
SETTLE_S = 2.0


class PutInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `put` prints. Bytes and seconds; `files` are those that travel with the tensors."""

    id: str
    key: str | None
    kind: str
    bytes: int
    tensors: int
    files: tuple[str, ...] = ()
    labels: dict[str, str]
    seconds: float
    bytes_per_s: float


class GetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `get` prints. Bytes of the file and seconds."""

    artifact: str
    path: str
    bytes: int
    seconds: float
    bytes_per_s: float


class ReplicateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `replicate` prints. `request` is the id of the event that asks for the replicas;
    `state` is issued, or (with --wait) succeeded or failed."""

    artifact: str
    nodes: tuple[str, ...]
    tier: str
    request: str
    state: str
    ready: tuple[str, ...]
    operations: tuple[OperationInfo, ...]
    bytes_ready: int
    bytes_total: int
    seconds: float


@app.command()
def put(
    call: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Safetensors files, a checkpoint folder, URLs (s3://...), or a .pt file.",
        ),
    ],
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Name it.")] = None,
    kind: Annotated[
        str, typer.Option(help="weights, adapter, kv, checkpoint or generic.")
    ] = "weights",
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node of this machine to put it on.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; repeat for more.")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="ID", help="What the key points to now, to move it from there."),
    ] = None,
) -> Result:
    """Register a checkpoint: safetensors files, a folder, or a .pt file."""
    session = session_of(call)
    labels = parse_labels(label or [])
    with session.client(node) as client, session.progress("put") as bar:
        old = client.api.artifact(expect).id if expect else None
        begin = time.monotonic()
        artifact = client.put(
            paths if len(paths) > 1 else paths[0],
            key=key,
            kind=kind,
            labels=labels,
            expect=old,
            progress=bar.advance_to,
        )
        took_s = time.monotonic() - begin
    warn_of_marks(session, artifact, kind, labels)
    size_bytes = max((spec.extent.end for spec in artifact.index), default=0)
    files = tuple(files_of(artifact.index))
    info = PutInfo(
        id=artifact.id,
        key=key,
        kind=artifact.kind,
        bytes=size_bytes,
        tensors=len(artifact.index) - len(files),
        files=files,
        labels=dict(artifact.labels),
        seconds=round(took_s, 6),
        bytes_per_s=round(size_bytes / took_s, 1) if took_s else 0.0,
    )
    return Answer(data=info, blocks=lambda: (_describe_put(info),), brief=(info.id,))


def warn_of_marks(session: Session, artifact: Artifact, kind: str, labels: dict[str, str]) -> None:
    """Says on standard error that content which was there before keeps its kind and labels."""
    kept = []
    if artifact.kind != kind:
        kept.append(f"kind {artifact.kind}")
    if any(artifact.labels.get(name) != value for name, value in labels.items()):
        shown = ", ".join(f"{name}={value}" for name, value in artifact.labels.items())
        kept.append(f"labels {shown or '(none)'}")
    if kept:
        sentence = f"Warning: {shorten(artifact.id)} was there already and keeps its"
        print(f"{sentence} {' and '.join(kept)}.", file=session.world.err)


@app.command()
def get(
    call: typer.Context,
    what: What,
    target: Annotated[
        str,
        typer.Argument(metavar="DEST", help="A file, a folder for model.safetensors, or s3://..."),
    ],
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node of this machine to read on.")
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="A part of it; see docs/tcctl.md for how to write it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    without_weights: Annotated[
        bool,
        typer.Option(
            "--without-weights",
            help="Into a folder, only what an engine needs beside the weights of the node.",
        ),
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Give up the read after so long.")
    ] = "5m",
) -> Result:
    """Write an artifact to a safetensors file."""
    from tensorcast.client.export import measure
    from tensorcast.client.views import parse_view

    session = session_of(call)
    part = parse_view(view) if view else None
    timeout_s = parse_seconds(timeout)
    if without_weights and part is not None:
        raise Usage("--view chooses among the weights.", hint="Leave out --without-weights.")
    with session.client(node) as client, session.progress("get") as bar:
        begin = time.monotonic()
        if without_weights:
            made = client.write_files(what, target, force=force, timeout=timeout_s)
            artifact, path, paths = made.artifact, made.folder, made.paths
        else:
            artifact, path = client.write_file(
                what, target, view=part, force=force, progress=bar.advance_to, timeout=timeout_s
            )
            paths = (path,)
        took_s = time.monotonic() - begin
    size_bytes = sum(map(measure, paths))
    info = GetInfo(
        artifact=artifact,
        path=path,
        bytes=size_bytes,
        seconds=round(took_s, 6),
        bytes_per_s=round(size_bytes / took_s, 1) if took_s else 0.0,
    )
    return Answer(data=info, blocks=lambda: (_describe_get(info),), brief=(info.path,))


@app.command()
def replicate(
    call: typer.Context,
    what: What,
    to: Annotated[str, typer.Option(metavar="NODE[,NODE...]|all", help="The nodes.")],
    tier: Annotated[str, typer.Option(help="gpu, dram, disk or object.")] = "dram",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all are ready.")] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="With --wait: give up after so long.")
    ] = WAIT,
) -> Result:
    """Make replicas of an artifact on other nodes."""
    session = session_of(call)
    timeout_s = parse_seconds(timeout)
    names = "all" if to == "all" else split_names(to)
    begin = time.monotonic()
    with session.client() as client:
        replication = client.replicate(what, to=names, tier=tier)
        if wait:
            follow(replication, session, timeout_s)
        took_s = time.monotonic() - begin
        info = inspect(replication, tier, took_s)
        if wait:
            info = settle(client, info)
    now = session.now()
    return Answer(
        data=info,
        blocks=lambda: (
            _describe_replication(info),
            *((table_operations(info.operations, now),) if info.operations else ()),
        ),
        brief=tuple(one.id for one in info.operations),
    )


def follow(replication: Replication, session: Session, timeout_s: float) -> None:
    """Wait for all replicas, with a progress bar. Raises Timeout, Failed."""
    with session.progress(f"replicate to {replication.node}") as bar:
        try:
            replication.wait(
                timeout_s,
                report=lambda now: bar.advance_to(now.bytes_ready, now.bytes_total),
            )
        except TensorCastError as error:
            if replication.status != "failed":
                raise
            raise Failed(
                error.message,
                hint=error.hint,
                artifact=error.artifact,
                node=error.node,
                operation=error.operation,
            ) from error


def inspect(replication: Replication, tier: str, took_s: float) -> ReplicateInfo:
    """A replication as it was when it was last asked for."""
    progress = replication.progress
    return ReplicateInfo(
        artifact=replication.artifact,
        nodes=tuple(replication.nodes),
        tier=tier,
        request=replication.id,
        state=replication.status,
        ready=tuple(progress.ready) if progress else (),
        operations=progress.operations if progress else (),
        bytes_ready=progress.bytes_ready if progress else 0,
        bytes_total=progress.bytes_total if progress else 0,
        seconds=round(took_s, 6),
    )


def settle(client: Client, info: ReplicateInfo) -> ReplicateInfo:
    """The same with its operations as they ended: their replicas are ready a moment before."""
    operations = tuple(
        client.api.wait_operation(one.id, timeout=SETTLE_S) if one.status == "running" else one
        for one in info.operations
    )
    return msgspec.structs.replace(info, operations=operations)


def _describe_put(info: PutInfo) -> Fields:
    return Fields(
        (
            ("artifact", info.id),
            ("key", info.key or ""),
            ("size", f"{format_size(info.bytes)} in {tell_count(info.tensors, 'tensor')}"),
            ("files", ", ".join(info.files)),
            ("took", f"{format_seconds(info.seconds)} ({format_rate(info.bytes_per_s)})"),
        )
    )


def _describe_get(info: GetInfo) -> Fields:
    return Fields(
        (
            ("file", info.path),
            ("size", format_size(info.bytes)),
            ("took", f"{format_seconds(info.seconds)} ({format_rate(info.bytes_per_s)})"),
        )
    )


def _describe_replication(info: ReplicateInfo) -> Fields:
    is_done = info.state == "succeeded"
    return Fields(
        (
            ("artifact", shorten(info.artifact)),
            ("to", f"{', '.join(info.nodes)} ({info.tier})"),
            ("state", info.state),
            ("took", format_seconds(info.seconds) if is_done else ""),
            ("request", info.request),
        )
    )
