"""`tcctl policy`: what decides by itself, and what it would have done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorcast.cli.backtests import Request, describe_comparison, place_of, run
from tensorcast.cli.output import Answer, Note, Result
from tensorcast.cli.policies import describe_policy, parse_parameters, table_policies
from tensorcast.cli.session import session_of
from tensorcast.cli.units import parse_seconds
from tensorcast.schema.api_policies import PolicyInfo

app = typer.Typer(
    help="Policies: what decides by itself, from every event.",
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="POLICY", help="Its name.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE...", help="Parameters; null: as the policy says."),
]


@app.command()
def ls(call: typer.Context) -> Result:
    """List the policies, in their order of precedence."""
    with session_of(call).client() as client:
        found = client.api.policies()
    return Answer(
        data=found,
        blocks=lambda: (table_policies(found),),
        brief=tuple(one.policy for one in found),
    )


@app.command()
def show(call: typer.Context, policy: Name) -> Result:
    """Show one policy, its parameters, and why it was stopped."""
    with session_of(call).client() as client:
        info = client.api.policy(policy)
    return _answer(info)


@app.command()
def enable(call: typer.Context, policy: Name, parameters: Words = None) -> Result:
    """Have a policy answer events from now on."""
    given = parse_parameters(parameters or ())
    with session_of(call).client() as client:
        client.api.enable_policy(policy, given or None)
        info = client.api.policy(policy)
    return _answer(info)


@app.command()
def disable(call: typer.Context, policy: Name) -> Result:
    """Have a policy answer no more events; what it has issued goes on."""
    with session_of(call).client() as client:
        was_off = any(one.policy == policy and one.state == "off" for one in client.api.policies())
        client.api.disable_policy(policy)
    told = f"Policy {policy} answers no more events; what it has issued goes on."
    if was_off:
        told = f"Policy {policy} was off, and stays so."
    return Answer(
        data={"policy": policy, "state": "off"}, blocks=lambda: (Note(told),), brief=(policy,)
    )


@app.command("set")
def change(
    call: typer.Context,
    policy: Name,
    parameters: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="Parameters; null: as the policy says."),
    ],
) -> Result:
    """Set parameters of a policy, while it runs; the others stay."""
    given = parse_parameters(parameters)
    with session_of(call).client() as client:
        client.api.set_policy(policy, given)
        info = client.api.policy(policy)
    return _answer(info)


@app.command()
def backtest(
    call: typer.Context,
    policy: Annotated[
        str, typer.Argument(metavar="FILE|POLICY", help="A file with policies, or a name.")
    ],
    parameters: Words = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="SEQ|TIME", help="Begin here (default: the beginning)."),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="SEQ|TIME", help="End here (default: now).")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of the cluster's log: one that was exported."),
    ] = None,
    decision_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Give up a policy that takes longer for one event.")
    ] = "10s",
) -> Result:
    """Replay the log through another policy: what it would have done, and cost."""
    session = session_of(call)
    request = Request(
        policy=policy,
        parameters=parse_parameters(parameters or ()),
        first=place_of(first, session.now()),
        last=place_of(last, session.now()),
    )
    found = run(session, request, log, parse_seconds(decision_timeout))
    return Answer(data=found, blocks=lambda: describe_comparison(found), brief=())


def _answer(info: PolicyInfo) -> Answer:
    return Answer(data=info, blocks=lambda: describe_policy(info), brief=(info.policy,))
