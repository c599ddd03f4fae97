"""`tcctl node`: the nodes of the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorcast.cli.output import Answer, Note, Result
from tensorcast.cli.session import session_of
from tensorcast.cli.tables import describe_node, table_nodes
from tensorcast.schema.api import NodeInfo

app = typer.Typer(help="The nodes of the cluster.", add_completion=False, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NODE", help="The node, for example n1.")]


@app.command()
def ls(call: typer.Context) -> Result:
    """List all nodes that ever joined."""
    with session_of(call).client() as client:
        found = client.api.nodes()
    return Answer(
        data=found,
        blocks=lambda: (table_nodes(found),),
        brief=tuple(one.node for one in found),
    )


@app.command()
def show(call: typer.Context, node: Name) -> Result:
    """Show one node: state, memory, transports, replicas."""
    with session_of(call).client() as client:
        info = client.api.node(node)
    return Answer(data=info, blocks=lambda: describe_node(info), brief=(info.node,))


@app.command()
def cordon(call: typer.Context, node: Name) -> Result:
    """Place no new replicas on it."""
    with session_of(call).client() as client:
        client.api.cordon(node)
        info = client.api.node(node)
    return _done(
        info, f"Policies place no new replicas on {node}; reads and writes there still work."
    )


@app.command()
def drain(call: typer.Context, node: Name) -> Result:
    """Cordon it and move its replicas to other nodes."""
    with session_of(call).client() as client:
        client.api.drain(node)
        info = client.api.node(node)
    return _done(
        info,
        f"Policies place no new replicas on {node} and move its own elsewhere (`tcctl op ls` shows "
        "the work); reads and writes there still work.",
    )


@app.command()
def uncordon(call: typer.Context, node: Name) -> Result:
    """Use it again; this ends a drain too."""
    with session_of(call).client() as client:
        client.api.uncordon(node)
        info = client.api.node(node)
    return _done(info, f"{node} gets new replicas again.")


def _done(info: NodeInfo, sentence: str) -> Answer:
    return Answer(data=info, blocks=lambda: (Note(sentence),), brief=(info.node,))
