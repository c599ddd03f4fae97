"""Which certificates a URL of Postgres names (as libpq does), as what the driver is given."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from tensorcast.schema.errors import InvalidArgument

MODE: Final = "sslmode"
FILES: Final = ("sslrootcert", "sslcert", "sslkey")
_VERIFIES: Final = ("verify-ca", "verify-full")


def make_tls(query: Mapping[str, str]) -> ssl.SSLContext | None:
    """The context for the parameters of a URL; None when no certificate is named, so that the
    driver goes by `sslmode` alone. Raises InvalidArgument."""
    ca, certificate, key = (query.get(name, "") for name in FILES)
    if not (ca or certificate or key):
        return None
    mode = query.get(MODE, query.get("ssl", "verify-full"))
    if mode not in (*_VERIFIES, "require"):
        raise InvalidArgument(
            f"sslmode={mode} in the URL of Postgres would not use its certificates.",
            hint="Write sslmode=verify-full.",
        )
    if bool(certificate) != bool(key):
        raise InvalidArgument(
            "sslcert and sslkey go together in the URL of Postgres.",
            hint="Set both to files, or none of them.",
        )
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidArgument(
            f"The certificates for Postgres cannot be used: {error.strerror or error}.",
            hint="Check sslrootcert, sslcert and sslkey in the URL.",
        ) from error
    # As libpq: with a CA, `require` checks the certificate and not the name in it.
    context.check_hostname = mode == "verify-full"
    if mode == "require" and not ca:
        context.verify_mode = ssl.CERT_NONE
    return context
