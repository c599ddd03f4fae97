"""Completion of command lines: the shell that is asked for by name, and the names of contexts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from tensorcast.cli.exits import Usage

PROGRAM: Final = "tcctl"
SHELLS: Final = ("bash", "zsh", "fish", "powershell", "pwsh")
_VARIABLE: Final = "_TCCTL_COMPLETE"
_DEEDS: Final[dict[str, Literal["show", "install"]]] = {
    "--show-completion": "show",
    "--install-completion": "install",
}


class Request(NamedTuple):
    """Completion that is asked for a named shell; without a name typer finds it out."""

    deed: Literal["show", "install"]
    shell: str


def find_request(argv: Sequence[str]) -> Request | None:
    """What a command line asks for; None when it names no shell. Raises Usage for an unknown
    one."""
    for i, word in enumerate(argv):
        name, equals, shell = word.partition("=")
        if word == "--":
            return None
        if name not in _DEEDS:
            continue
        if not equals:
            shell = argv[i + 1] if i + 1 < len(argv) else ""
        if not equals and (not shell or shell.startswith("-")):
            return None
        if shell not in SHELLS:
            raise Usage(f"{shell!r} is not a shell.", hint=f"Use one of {', '.join(SHELLS)}.")
        return Request(_DEEDS[name], shell)
    return None


def answer(request: Request) -> str:
    """The script of the shell, or, once it is installed, a sentence that says where."""
    from typer._completion_shared import get_completion_script, install

    if request.deed == "show":
        return get_completion_script(prog_name=PROGRAM, complete_var=_VARIABLE, shell=request.shell)
    shell, path = install(shell=request.shell, prog_name=PROGRAM, complete_var=_VARIABLE)
    return f"Completion for {shell} is installed in {path}; new shells have it."


def complete_contexts(incomplete: str) -> list[str]:
    """The contexts of this user whose names begin so. Reads the folder of contexts."""
    from tensorcast.client.context import config_folder

    try:
        files = sorted((config_folder(os.environ) / "contexts").glob("*.json"))
    except OSError:
        return []
    return [file.stem for file in files if file.stem.startswith(incomplete)]
