"""`tcctl kv`: KV blocks, as far as the nodes have told of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from tensorcast.cli.blocks import (
    block_flow,
    describe_block,
    parse_block_key,
    table_spaces,
    table_stats,
)
from tensorcast.cli.output import Answer, Result
from tensorcast.cli.prefixes import read_tokens, table_holders, table_views
from tensorcast.cli.session import Session, session_of
from tensorcast.schema.api import LIST_MAX, BlockQuery, EventInfo
from tensorcast.schema.ids import parse_node

app = typer.Typer(
    help="KV blocks: what nodes hold, and what happened to them.",
    add_completion=False,
    rich_markup_mode=None,
)
FOLLOW_S = 0.5


@app.command()
def ls(call: typer.Context) -> Result:
    """List the spaces of KV blocks, and where their blocks are."""
    with session_of(call).client() as client:
        found = client.api.block_spaces()
    return Answer(
        data=found,
        blocks=lambda: (table_spaces(found),),
        brief=tuple(one.space for one in found),
    )


@app.command()
def stats(call: typer.Context) -> Result:
    """Show how many KV blocks each node holds in each tier, and its counters."""
    with session_of(call).client() as client:
        found = client.api.block_stats()
    return Answer(
        data=found,
        blocks=lambda: (table_stats(found),),
        brief=tuple(one.node for one in found),
    )


@app.command()
def show(
    call: typer.Context,
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="SPACE/PREFIX or SPACE/GROUP/RANK/PREFIX, in hex."),
    ],
    node: Annotated[str | None, typer.Option(metavar="NODE", help="On this node only.")] = None,
) -> Result:
    """Show who holds one KV block, and the last events that named it."""
    wanted = parse_block_key(key)
    with session_of(call).client() as client:
        info = client.api.block(wanted, node=node)
    return Answer(
        data=info,
        blocks=lambda: describe_block(info),
        brief=tuple(dict.fromkeys(one.node for one in info.holders)),
    )


@app.command()
def engines(
    call: typer.Context,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that have stopped or were lost.")
    ] = False,
) -> Result:
    """List how many blocks engines hold in their own caches, and how well that is known."""
    session = session_of(call)
    with session.client() as client:
        found = client.api.engine_views(all=every)
    return Answer(
        data=found,
        blocks=lambda: (table_views(found, session.now()),),
        brief=tuple(one.engine for one in found),
    )


@app.command()
def holders(
    call: typer.Context,
    tokens: Annotated[
        str, typer.Argument(metavar="TOKENS", help="Ids of tokens: 1,22172,263; or @FILE, or -.")
    ],
    lora: Annotated[str | None, typer.Option(metavar="NAME", help="For this adapter.")] = None,
    salt: Annotated[str | None, typer.Option(metavar="SALT", help="With this cache salt.")] = None,
) -> Result:
    """Show which engines hold the beginning of a prompt in their own caches."""
    prompt = read_tokens(tokens)
    with session_of(call).client() as client:
        found = client.api.holders(prompt, lora=lora, salt=salt)
    return Answer(
        data=found,
        blocks=lambda: (table_holders(found),),
        brief=tuple(one.engine for one in found),
    )


@app.command()
def tail(
    call: typer.Context,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Of this node.")] = None,
    space: Annotated[str | None, typer.Option(metavar="SPACE", help="Of this space.")] = None,
    kind: Annotated[
        str | None, typer.Option("--type", help="Of this type, for example blocks.stored.")
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, max=LIST_MAX, metavar="N", help="Begin with the last N.")
    ] = 20,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more.")] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="With the keys (base64), in json and ndjson.")
    ] = False,
) -> Result:
    """Print the last KV events, oldest first."""
    query = BlockQuery(
        node=parse_node(node) if node else None,
        space=space,
        type=kind,
        limit=last,
        newest=True,
        with_keys=keys,
    )
    return block_flow(_pages(session_of(call), query, follow=follow))


def _pages(session: Session, query: BlockQuery, *, follow: bool) -> Iterator[Sequence[EventInfo]]:
    """The last events that match; with `follow` those that come, for ever."""
    with session.client() as client:
        page = client.api.block_events(query)
        yield page
        query = msgspec.structs.replace(query, newest=False, limit=LIST_MAX)
        while follow:
            if page:
                query = msgspec.structs.replace(query, since=page[-1].seq)
            else:
                time.sleep(FOLLOW_S)
            page = client.api.block_events(query)
            if page:
                yield page
