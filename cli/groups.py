"""How `tcctl` finds its commands: the table of them, loaded when used, all with the global options.

`tcctl --help` reads the table only, so it loads no command. A test checks that the sentences here
are those of the commands themselves.
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from collections.abc import Iterable


class Entry(NamedTuple):
    """A command or a noun of `tcctl`: `module` in cli/commands has it in its `app`."""

    module: str
    help: str
    is_noun: bool = False


COMMANDS: Final[dict[str, Entry]] = {
    "up": Entry("up", "Start a cluster on this machine, or what is missing of it."),
    "down": Entry("up", "Stop the cluster of this machine; nothing is lost."),
    "status": Entry("up", "Show how the cluster is, in words."),
    "doctor": Entry("doctor", "Check this machine and say how to mend what is wrong."),
    "put": Entry("data", "Register a checkpoint: safetensors files, a folder, or a .pt file."),
    "get": Entry("data", "Write an artifact to a safetensors file."),
    "replicate": Entry("data", "Make replicas of an artifact on other nodes."),
    "artifact": Entry("artifact", "What is stored: content, replicas, history.", is_noun=True),
    "key": Entry("key", "The names of artifacts.", is_noun=True),
    "op": Entry("op", "Operations: the work of the nodes.", is_noun=True),
    "node": Entry("node", "The nodes of the cluster.", is_noun=True),
    "context": Entry("context", "The clusters that you know, and which is in use.", is_noun=True),
    "engine": Entry("engine", "Inference engines, and the weights that they serve.", is_noun=True),
    "kv": Entry("kv", "KV blocks: what nodes hold, and what happened to them.", is_noun=True),
    "signal": Entry(
        "signal", "Signals: what was said on which topic, and who listens.", is_noun=True
    ),
    "policy": Entry("policy", "Policies: what decides by itself, from every event.", is_noun=True),
    "plan": Entry("plan", "Plans: programs of operations, run step by step.", is_noun=True),
    "rollout": Entry(
        "rollout",
        "Roll-outs: new weights to the engines that serve them.",
        is_noun=True,
    ),
    "bench": Entry("bench", "Measure this cluster, beside bare loops of this machine."),
    "audit": Entry("audit", "The log of everything that happened.", is_noun=True),
    "replay": Entry("replay", "Show the state as it was at an earlier moment."),
    "diff": Entry("diff", "Show what was added, removed and changed between two moments."),
    "store": Entry(
        "store", "The database: made anew from the log, relieved of old events.", is_noun=True
    ),
    "backup": Entry(
        "backup", "Copy the history of the cluster of this machine into a folder, while it runs."
    ),
    "restore": Entry(
        "backup", "Make the cluster of a backup anew in an empty folder; `tcctl up` starts it."
    ),
    "access": Entry("access", "Who may do what in which namespace.", is_noun=True),
    "keys": Entry("keys", "Keys of the cluster: who may do what.", is_noun=True),
    "serve": Entry("serve", "Run a process of a real deployment.", is_noun=True),
}
GLOBALS_NOTE: Final = (
    "Global options work here too: --context, -o/--output, -q/--quiet, --no-color, --version."
)
_COMPLETION: Final = ("install_completion", "show_completion")


def load(name: str) -> TyperCommand | TyperGroup:
    """The real command or noun behind a name of the table."""
    entry = COMMANDS[name]
    module = import_module(f"tensorcast.cli.commands.{entry.module}")
    app: typer.Typer = module.app
    group = get_group(app)
    if entry.is_noun:
        group.name = name
        return group
    command = group.commands[name]
    assert isinstance(command, TyperCommand)
    return command


class LazyGroup(TyperGroup):
    """The root. Its commands are stand-ins with a sentence of help until one is called."""

    def __init__(self, **attrs: object) -> None:
        super().__init__(**attrs)  # type: ignore[arg-type]  # passed through as typer gives them
        self.commands = {
            name: TyperCommand(name, short_help=entry.help, rich_markup_mode=None)
            for name, entry in COMMANDS.items()
        }

    def resolve_command(
        self,
        ctx: object,
        args: list[str],
    ) -> tuple[str | None, TyperCommand | TyperGroup | None, list[str]]:
        """The real command that the arguments name, with the global options added."""
        name, stand_in, rest = super().resolve_command(
            ctx,  # type: ignore[arg-type]  # a context, whose class typer does not publish
            args,
        )
        if name is None or stand_in is None:
            return name, None, rest
        command = load(name)
        share_options(command, self.params)
        return name, command, rest


def share_options(command: TyperCommand | TyperGroup, params: Iterable[object]) -> None:
    """Modify a command and all below it: they take the global options too, unseen in the help."""
    shared = [copy.copy(param) for param in params if getattr(param, "name", "") not in _COMPLETION]
    for param in shared:
        param.hidden = True  # type: ignore[attr-defined]  # every option has it
    command.params.extend(shared)  # type: ignore[arg-type]  # copies of options
    command.epilog = GLOBALS_NOTE
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            assert isinstance(below, TyperCommand | TyperGroup)
            share_options(below, shared)
