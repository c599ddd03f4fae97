"""Which cluster a client talks to: from its argument, the environment, or what `tcctl up` wrote.

In this order: the argument (a name or a `Context`); TENSORCAST_NATS_URL or TENSORCAST_SOCKET with
TENSORCAST_CLUSTER and TENSORCAST_NODE; the name in TENSORCAST_CONTEXT; the name in
`<config dir>/current`; the context whose home is TENSORCAST_HOME, or without that the only one
that there is. TENSORCAST_NODE alone chooses among the nodes of a named context.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from tensorcast.schema.access import Access, read_access
from tensorcast.schema.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from tensorcast.schema.ids import parse_cluster

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CONTEXT_BYTES_MAX = 1 << 20
NAMED_MAX = 10
START_HINT = "Start a cluster with `tcctl up`, or set TENSORCAST_NATS_URL and TENSORCAST_SOCKET."


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """How a client on this machine reaches one mover: the path of its unix socket."""

    socket: str


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reaches a cluster. `nodes` are those of this machine; `default_node` is the one
    whose memory a client reads and writes unless told otherwise; `access` is the key with which it
    proves who it is."""

    cluster: str
    nats_url: str
    home: str | None = None
    nodes: dict[str, NodeContext] = {}
    default_node: str | None = None
    access: Access = Access()


def config_folder(environ: Mapping[str, str]) -> Path:
    """Where contexts are kept: $TENSORCAST_CONFIG_DIR, else tensorcast/ in $XDG_CONFIG_HOME or
    ~/.config."""
    named = environ.get("TENSORCAST_CONFIG_DIR")
    if named:
        return Path(named).expanduser()
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "tensorcast"


def resolve_context(
    context: str | Context | None, node: str | None, environ: Mapping[str, str]
) -> Context:
    """The context to use, its `default_node` set to `node` if that is given.

    Reads files. Raises Unavailable when no cluster is known here, NotFound for an unknown name or
    node, InvalidArgument for a context that cannot be read.
    """
    if context == "" or node == "":
        what = "node" if node == "" else "context"
        raise InvalidArgument(f"The name of the {what} is empty.", hint="Name one, or give None.")
    found = context if isinstance(context, Context) else _named_or_environ(context, environ)
    wanted = node or environ.get("TENSORCAST_NODE")
    return choose_node(found, wanted) if wanted else found


def choose_node(context: Context, node: str) -> Context:
    """The same context with another default node. Raises NotFound when it is not on this
    machine."""
    if node not in context.nodes:
        known = ", ".join(sorted(context.nodes)) or "none"
        raise NotFound(
            f"Node {node!r} has no mover on this machine.",
            hint=f"Nodes here: {known}.",
            node=node,
        )
    return msgspec.structs.replace(context, default_node=node)


def _named_or_environ(name: str | None, environ: Mapping[str, str]) -> Context:
    if name:
        return load_context(name, environ)
    if environ.get("TENSORCAST_NATS_URL") or environ.get("TENSORCAST_SOCKET"):
        return _from_environ(environ)
    named = environ.get("TENSORCAST_CONTEXT") or current_context(environ)
    return load_context(named, environ) if named else _choose_known(environ)


def is_chosen(environ: Mapping[str, str]) -> bool:
    """Whether a cluster is named by the environment or in use, so that none has to be guessed."""
    variables = ("TENSORCAST_NATS_URL", "TENSORCAST_SOCKET", "TENSORCAST_CONTEXT")
    return any(environ.get(name) for name in variables) or bool(current_context(environ))


def _choose_known(environ: Mapping[str, str]) -> Context:
    """The context to use when none is current: the one of TENSORCAST_HOME, else the only one."""
    known = list_contexts(environ)
    if not known:
        raise Unavailable("No cluster is known on this machine.", hint=START_HINT)
    home = environ.get("TENSORCAST_HOME")
    if not home and len(known) == 1:
        return load_context(known[0], environ)
    for name in known if home else ():
        with suppress(InvalidArgument, NotFound, PermissionDenied):
            found = load_context(name, environ)
            if found.home and Path(found.home).resolve() == Path(home or "").resolve():
                return found
    raise Unavailable(
        "No context is chosen.",
        hint=f"Choose one with `--context` or TENSORCAST_CONTEXT: {', '.join(known[:NAMED_MAX])}.",
    )


def list_contexts(environ: Mapping[str, str]) -> list[str]:
    """The names of the contexts that there are, sorted. Raises PermissionDenied."""
    try:
        paths = list((config_folder(environ) / "contexts").glob("*.json"))
    except PermissionError as error:
        raise PermissionDenied(f"{error.filename} cannot be read.") from error
    return sorted(path.stem for path in paths if _NAME.fullmatch(path.stem))


def _from_environ(environ: Mapping[str, str]) -> Context:
    node = environ.get("TENSORCAST_NODE") or "local"
    socket = environ.get("TENSORCAST_SOCKET")
    return Context(
        cluster=parse_cluster(environ.get("TENSORCAST_CLUSTER") or "default"),
        nats_url=environ.get("TENSORCAST_NATS_URL", ""),
        nodes={node: NodeContext(socket=socket)} if socket else {},
        default_node=node if socket else None,
        access=read_access(environ),
    )


def current_context(environ: Mapping[str, str]) -> str:
    """The name of the context in use; empty when none is. Raises PermissionDenied."""
    try:
        return (config_folder(environ) / "current").read_text()[:256].strip()
    except FileNotFoundError:
        return ""
    except PermissionError as error:
        raise PermissionDenied(f"{error.filename} cannot be read.") from error


def load_context(name: str, environ: Mapping[str, str]) -> Context:
    """The context of this name. Reads a file. Raises NotFound, InvalidArgument,
    PermissionDenied."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a context.", hint="Use letters, digits, '.', '_', '-'."
        )
    path = config_folder(environ) / "contexts" / f"{name}.json"
    try:
        with path.open("rb") as file:
            context = msgspec.json.decode(file.read(CONTEXT_BYTES_MAX), type=Context)
    except FileNotFoundError as error:
        raise NotFound(
            f"There is no context {name!r} in {path.parent}.",
            hint="`tcctl up` writes one; `--context` and TENSORCAST_CONTEXT choose one.",
        ) from error
    except PermissionError as error:
        raise PermissionDenied(f"{path} cannot be read.") from error
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"{path} is not a context: {error}.", hint="Run `tcctl up` to write it anew."
        ) from error
    parse_cluster(context.cluster)
    return context
