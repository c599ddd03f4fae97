"""The `tcctl` program: global options, exit codes, and nobody ever sees a traceback."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Final, TextIO

import typer
from typer.main import get_command

from tensorcast.cli.completion import answer, complete_contexts, find_request
from tensorcast.cli.exits import Exit, Usage, exit_of
from tensorcast.cli.groups import LazyGroup
from tensorcast.cli.notices import telling
from tensorcast.cli.output import Answer, Flow, Format, Nothing
from tensorcast.cli.render import render, render_error
from tensorcast.cli.session import Options, Session, World, session_of
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.wording import end_sentence

DEBUG_VARIABLE: Final = "TENSORCAST_DEBUG"
ABOUT: Final = "TensorCast: tensors named, tracked, moved and shared across an LLM cluster."

_SHOULD_BE: Final = re.compile(r"Input should be ([^,.]+)(, unable to parse [^.]*)?")
_FORMATS: Final = {output.value: output for output in Format}

app = typer.Typer(
    cls=LazyGroup,
    name="tcctl",
    help=ABOUT,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _take_context(context: typer.Context, value: str | None) -> None:
    if value is not None:
        session = session_of(context)
        session.options = replace(session.options, context=value)


def _take_output(context: typer.Context, value: Format | None) -> None:
    if value is not None:
        session = session_of(context)
        session.options = replace(session.options, output=value)


def _take_quiet(context: typer.Context, value: bool) -> None:
    if value:
        session = session_of(context)
        session.options = replace(session.options, quiet=True)


def _take_no_color(context: typer.Context, value: bool) -> None:
    if value:
        session = session_of(context)
        session.options = replace(session.options, color=False)


def _show_version(context: typer.Context, value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"tcctl {version('tensorcast-taas')}", file=session_of(context).world.out)
        raise typer.Exit


@app.callback()
def root(
    call: typer.Context,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            callback=_take_context,
            autocompletion=complete_contexts,
            expose_value=False,
            help="The cluster to talk to (default: the one of the last `tcctl up`).",
        ),
    ] = None,
    output: Annotated[
        Format | None,
        typer.Option(
            "-o",
            "--output",
            callback=_take_output,
            expose_value=False,
            show_default=False,
            help="How to print; table unless given. Field names of json are stable.",
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "-q",
            "--quiet",
            callback=_take_quiet,
            expose_value=False,
            help="Print ids only, and no progress.",
        ),
    ] = False,
    no_color: Annotated[
        bool,
        typer.Option(
            "--no-color", callback=_take_no_color, expose_value=False, help="Print no colours."
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            expose_value=False,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Show the help when no command is given; the callbacks have taken the options already."""
    if call.invoked_subcommand is None:
        print(call.get_help(), file=session_of(call).world.out)


def main(arguments: Sequence[str] | None = None, world: World | None = None) -> int:
    """Run `tcctl` and return its exit code; errors are told on standard error."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    world = world or World()
    session = Session(world, Options(output=guess_output(argv)))
    if isinstance(world.out, io.TextIOWrapper):  # a path that is not UTF-8 is printed as it is
        world.out.reconfigure(errors="surrogateescape")
    try:
        with _interrupted_by_sigterm(), telling(session):
            code = _run(argv, session)
        world.out.flush()
    except BrokenPipeError:
        _drop_output(world.out)
        return Exit.DONE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except TensorCastError as error:
        render_error(error, session)
        return exit_of(error)
    except Exception as error:  # the last resort: people get a sentence, not a traceback
        return _explain(error, session)
    return code


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is like Ctrl-C, so that nothing unfinished is left behind; ignored it stays so."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(argv: list[str], session: Session) -> int:
    if (request := find_request(argv)) is not None:
        print(answer(request), file=session.world.out)
        return Exit.DONE
    command = get_command(app)
    try:
        result: object = command.main(argv, prog_name="tcctl", standalone_mode=False, obj=session)
    except typer.TyperException as error:
        raise explain_usage(error) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    if isinstance(result, Answer | Flow | Nothing):
        render(result, session)
        return finish(result, session)
    return result if isinstance(result, int) else Exit.DONE


def finish(result: Answer | Flow | Nothing, session: Session) -> int:
    """The exit code of a printed result, after its error (if it has one) is told."""
    if isinstance(result, Answer) and result.error is not None:
        session.world.out.flush()
        render_error(result.error, session)
        return exit_of(result.error)
    return 0 if isinstance(result, Flow) else result.exit_code


def explain_usage(error: typer.TyperException) -> Usage:
    """A complaint of the parser as one of our errors."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tcctl"
    message = error.format_message().strip().replace("\n", " ")
    message = message.replace("Value error, ", "")  # the validator's words, not ours
    message = _SHOULD_BE.sub(r"it should be \1", message)
    return Usage(end_sentence(message), hint=f"Try `{path} --help`.")


def guess_output(argv: Sequence[str]) -> Format:
    """The output format on a command line that may not parse: errors are printed in it too."""
    names = {"-o", "--output"}
    for i, word in enumerate(argv):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in names and not equals:
            value = argv[i + 1] if i + 1 < len(argv) else ""
        elif word.startswith("-o") and not equals:
            value = word[2:]
        elif name != "--output":
            continue
        if value in _FORMATS:
            return _FORMATS[value]
    return Format.TABLE


def _drop_output(out: TextIO) -> None:
    """Nobody reads any more: what is still buffered goes nowhere, quietly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def _explain(error: Exception, session: Session) -> int:
    if session.world.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=session.world.err)
    with tempfile.NamedTemporaryFile("w", prefix="tcctl-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    failure = TensorCastError(
        end_sentence(f"tcctl met an error that it does not know: {type(error).__name__}: {error}"),
        hint=f"Details are in {log.name}; {DEBUG_VARIABLE}=1 shows them here.",
    )
    render_error(failure, session)
    return Exit.FAILED
