"""What the client tells on its way (whom it waits for), for who reads standard error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tensorcast.cli.output import Format
from tensorcast.cli.session import Session

CLIENT = "tensorcast.client"


class _Teller(logging.Handler):
    """Prints warnings of the client on standard error; with `-q`, or where a program reads the
    errors as JSON, nothing."""

    def __init__(self, session: Session) -> None:
        super().__init__(logging.WARNING)
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        options = self._session.options
        if options.output is Format.TABLE and not options.quiet:
            print(record.getMessage(), file=self._session.world.err, flush=True)


@contextmanager
def telling(session: Session) -> Iterator[None]:
    """Tells what the client says while the block runs."""
    logger, teller = logging.getLogger(CLIENT), _Teller(session)
    before = logger.propagate
    logger.addHandler(teller)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(teller)
