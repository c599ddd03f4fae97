"""Proving to a NATS server who one is: what its client is given to connect with."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.schema.access import Access
from tensorcast.schema.errors import InvalidArgument, PermissionDenied
from tensorcast.schema.nkeys import Signer

if TYPE_CHECKING:  # a client of the command line imports it when it connects
    from nats.aio.client import Client


def make_signer(nats: Client, access: Access) -> Signer | None:
    """Signs for a client; None when it has no key. Raises PermissionDenied, InvalidArgument."""
    if not access.credentials:
        return None

    def adopt(public: str) -> None:
        # nats-py's own way to take a nkey (`nkeys_seed`) reads the public key once, at the first
        # connection, and the seed at each: after a rotation the two would not match. The client
        # reads this right after it has its signature; nothing else can change its key.
        nats._public_nkey = public or None

    if not hasattr(nats, "_public_nkey"):
        raise InvalidArgument(
            "This release of nats-py takes no keys in the way that is known here.",
            hint="Install nats-py 2.16 (`pip install 'nats-py>=2.16,<3'`).",
        )
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


def distrust(error: Exception, place: str) -> PermissionDenied | None:
    """The error for a connection that failed because of a certificate, of the server at `place` or
    of this process; None for every other failure, which a later try may mend."""
    if not isinstance(error, ssl.SSLError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return PermissionDenied(
            f"The certificate of the NATS server at {place} is not trusted:"
            f" {error.verify_message.rstrip('.')}.",
            hint="TENSORCAST_NATS_CA names the certificate of the authority that signed it.",
        )
    reason = getattr(error, "reason", "") or ""
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return PermissionDenied(
            f"The NATS server at {place} does not accept the certificate of this process.",
            hint="Check TENSORCAST_NATS_CERT and TENSORCAST_NATS_CERT_KEY.",
        )
    return None
