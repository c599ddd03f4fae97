"""`tcctl op`: operations, the work of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensorcast.cli.exits import Failed
from tensorcast.cli.output import Answer, Note, Result, shorten_operation
from tensorcast.cli.session import Session, session_of
from tensorcast.cli.tables import describe_operation, table_operations
from tensorcast.cli.units import parse_seconds
from tensorcast.schema.api import OperationInfo
from tensorcast.schema.errors import TensorCastError

if TYPE_CHECKING:
    from tensorcast.cli.progress import Bar
    from tensorcast.client import Client

app = typer.Typer(
    help="Operations: the work of the nodes.", add_completion=False, rich_markup_mode=None
)
What = Annotated[str, typer.Argument(metavar="ID", help="The operation; a beginning will do.")]
ENDED = ("succeeded", "failed", "cancelled")
FOR_EVER = "10d"


@app.command()
def ls(
    call: typer.Context,
    artifact: Annotated[
        str | None, typer.Option(metavar="KEY|ID", help="Only those about it (key or id).")
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only those of this node.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(help="issued, running, succeeded, failed or cancelled.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", max=1000, help="At most so many.")
    ] = 1000,
) -> Result:
    """List the operations, newest first."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.operations(artifact=artifact, node=node, status=status, limit=limit)
    now = session.now()
    return Answer(
        data=found,
        blocks=lambda: (table_operations(found, now),),
        brief=tuple(one.id for one in found),
    )


@app.command()
def show(call: typer.Context, operation: What) -> Result:
    """Show one operation: status, progress, what it moved and why it was issued."""
    with session_of(call).client() as client:
        info = client.api.operation(operation)
    return _describe(info)


@app.command()
def watch(
    call: typer.Context,
    operation: What,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Give up after so long.")] = FOR_EVER,
) -> Result:
    """Watch an operation until it has ended."""
    session = session_of(call)
    with session.client() as client:
        info = follow(client, operation, session, parse_seconds(timeout))
    return _describe(info, error=explain_end(info))


@app.command()
def cancel(
    call: typer.Context,
    operation: What,
    reason: Annotated[str, typer.Option(help="Told in the log.")] = "asked by a user",
) -> Result:
    """Cancel an operation that has not ended."""
    with session_of(call).client() as client:
        client.api.cancel(operation, reason=reason)
        info = client.api.operation(operation)
    return _done(info, "is cancelled")


@app.command()
def retry(
    call: typer.Context,
    operation: What,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="With --wait: give up after so long.")
    ] = FOR_EVER,
) -> Result:
    """Issue a failed or cancelled operation again."""
    session = session_of(call)
    with session.client() as client:
        client.api.retry(operation)
        if wait:
            info = follow(client, operation, session, parse_seconds(timeout))
            return _describe(info, error=explain_end(info))
        info = client.api.operation(operation)
    return _done(info, f"is issued again (attempt {info.attempt})")


def follow(client: Client, what: str, session: Session, timeout_s: float) -> OperationInfo:
    """The operation when it has ended, with a progress bar meanwhile. Raises Timeout."""
    operation = client.operation(what)
    size_bytes = client.api.artifact(operation.artifact).bytes
    with session.progress(f"{operation.kind} on {operation.node}") as bar:
        try:
            return operation.wait(timeout_s, report=lambda info: _advance(bar, info, size_bytes))
        except TensorCastError:
            if operation.status not in ENDED:
                raise
            return operation.info


def explain_end(info: OperationInfo) -> TensorCastError | None:
    """The error that an ended operation leads to; None when it succeeded."""
    if info.status == "succeeded":
        return None
    reason = f": {info.fault.detail}" if info.fault else "."
    return Failed(
        f"Operation {info.id} has {info.status}{reason}"
        if info.status == "failed"
        else f"Operation {info.id} was {info.status}.",
        hint=f"`tcctl op retry {shorten_operation(info.id)}` issues it again.",
        artifact=info.artifact,
        node=info.node,
        operation=info.id,
    )


def _advance(bar: Bar, info: OperationInfo, size_bytes: int) -> None:
    if info.chunks_total:
        bar.advance_to(size_bytes * info.chunks_ready // info.chunks_total, size_bytes)


def _describe(info: OperationInfo, *, error: TensorCastError | None = None) -> Answer:
    return Answer(data=info, blocks=lambda: describe_operation(info), brief=(info.id,), error=error)


def _done(info: OperationInfo, words: str) -> Answer:
    sentence = f"{shorten_operation(info.id)} {words}."
    return Answer(data=info, blocks=lambda: (Note(sentence),), brief=(info.id,))
