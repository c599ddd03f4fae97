"""Proving to a NATS server who one is: what its client is given to connect with."""

from __future__ import annotations

import ssl
from pathlib import Path

from nats.aio.client import Client

from tensorcast.schema.access import Access
from tensorcast.schema.errors import InvalidArgument, PermissionDenied
from tensorcast.schema.nkeys import Signer


def make_signer(nats: Client, access: Access) -> Signer | None:
    """Signs for a client; None when it has no key. Raises PermissionDenied, InvalidArgument."""
    if not access.credentials:
        return None

    def adopt(public: str) -> None:
        # The client reads it right after it has its signature; nothing else can change its key.
        nats._public_nkey = public or None

    try:
        return Signer(Path(access.credentials).read_text, adopt)
    except OSError as error:
        raise PermissionDenied(
            f"The NATS key {access.credentials} cannot be read: {error.strerror}.",
            hint="TENSORCAST_NATS_CREDENTIALS names the file.",
        ) from error


def make_tls(access: Access) -> ssl.SSLContext | None:
    """What to check a server's certificate with, and which one to show; None: the system's way.
    Raises InvalidArgument."""
    if not access.has_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=access.ca or None)
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidArgument(
            f"The certificates for NATS cannot be used: {error.strerror or error}.",
            hint="Check TENSORCAST_NATS_CA, TENSORCAST_NATS_CERT and TENSORCAST_NATS_CERT_KEY.",
        ) from error
    return context
