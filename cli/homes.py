"""Which folder `up`, `down`, `status` and `doctor` mean: the home of the embedded cluster."""

from __future__ import annotations

from pathlib import Path

from tensorcast.cli.session import Session
from tensorcast.client.context import Context, is_chosen, resolve_context
from tensorcast.schema.errors import NotFound, Unavailable

HOME_VARIABLE = "TENSORCAST_HOME"
CONTEXT_VARIABLE = "TENSORCAST_CONTEXT"


def choose_home(session: Session, data_dir: Path | None) -> Path:
    """The folder that was named, else the home of the named context, else $TENSORCAST_HOME, else
    the home of the context in use, else the default of this machine. Reads context files.

    A context that is neither named nor in use is not meant, even if it is the only one: what
    `down --purge` deletes is not guessed."""
    from tensorcast.deploy.cluster import default_home

    environ = session.world.environ
    if data_dir is not None:
        return data_dir.expanduser().absolute()
    if session.options.context is None and environ.get(HOME_VARIABLE):
        return default_home(environ)
    is_meant = session.options.context is not None or is_chosen(environ)
    context = find_context(session) if is_meant else None
    return Path(context.home) if context and context.home else default_home(environ)


def named_context(session: Session) -> str | None:
    """The name of the context that the command line gives, else $TENSORCAST_CONTEXT."""
    return session.options.context or session.world.environ.get(CONTEXT_VARIABLE) or None


def check_context(session: Session) -> None:
    """Raises NotFound when a context is named that does not exist."""
    if session.options.context is not None:
        resolve_context(session.options.context, None, session.world.environ)


def find_context(session: Session) -> Context | None:
    """The context that is named or in use; None when there is none."""
    try:
        return resolve_context(session.options.context, None, session.world.environ)
    except (NotFound, Unavailable):
        return None
