"""NATS keys: an Ed25519 key pair in the texts that nats-server and its tools read. Pure.

A seed (`SU...`) is a secret and a public key (`U...`) names it; both are base32 of a prefix, 32
bytes and a CRC-16. A server sends a nonce, and who signs it is let in: the seed never travels.
Source: https://github.com/nats-io/nkeys (its README describes the encoding).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tensorcast.schema.errors import InvalidArgument

SEED_BYTES: Final = 32
_USER: Final = 20 << 3
_SEED: Final = 18 << 3
_SEED_TEXT: Final = re.compile(r"\bSU[A-Z2-7]{56}\b")
_JWT_TEXT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")


class Credentials(msgspec.Struct, frozen=True):
    """What a process proves its identity with: 32 secret bytes, and for servers with accounts a
    JWT. It never shows the secret when it is printed."""

    secret: bytes
    jwt: str = ""

    @property
    def public(self) -> str:
        """The public key, `U...`."""
        raw = Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()
        return _encode(bytes([_USER]) + raw)

    @property
    def seed(self) -> str:
        """The secret as text, `SU...`: what a key file holds."""
        return _encode(bytes([_SEED | (_USER >> 5), (_USER & 31) << 3]) + self.secret)

    def sign(self, nonce: bytes) -> bytes:
        """The signature of a server's nonce, as base64."""
        return base64.b64encode(Ed25519PrivateKey.from_private_bytes(self.secret).sign(nonce))

    def __repr__(self) -> str:
        return f"<Credentials of {self.public}>"


class Signer:
    """Signs what a server asks to be signed. `read` gives the text of the key file, at each
    connection: after the key was rotated the next one uses the new key; when it raises, the last
    one is used. `adopt` is told the public key just before its signature is returned (empty when a
    JWT stands for it). Raises what `read` and `parse_credentials` raise, when made."""

    def __init__(self, read: Callable[[], str], adopt: Callable[[str], None]) -> None:
        self._read = read
        self._adopt = adopt
        self._now = parse_credentials(read())

    @property
    def has_jwt(self) -> bool:
        """Whether a JWT stands for the key."""
        return bool(self._now.jwt)

    def sign(self, nonce: str) -> bytes:
        """As `signature_cb` of a NATS client."""
        with suppress(OSError, InvalidArgument):
            self._now = parse_credentials(self._read())
        self._adopt("" if self._now.jwt else self._now.public)
        return self._now.sign(nonce.encode())

    def jwt(self) -> bytes:
        """As `user_jwt_cb` of a NATS client."""
        return self._now.jwt.encode()


def parse_credentials(text: str) -> Credentials:
    """The credentials in a key file (a seed) or a `.creds` file (a JWT and a seed). Raises
    InvalidArgument, which does not show what it read."""
    found, jwt = _SEED_TEXT.search(text), _JWT_TEXT.search(text)
    raw = _decode(found.group()) if found else b""
    if len(raw) != 2 + SEED_BYTES:
        raise InvalidArgument(
            "A NATS key file holds no seed of a user.", hint="It begins with SU and has 58 letters."
        )
    return Credentials(raw[2:], jwt.group(1) if jwt else "")


def _encode(raw: bytes) -> str:
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """The bytes of a text without their checksum; b"" when that is wrong."""
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    body, check = raw[:-2], int.from_bytes(raw[-2:], "little")
    return body if binascii.crc_hqx(body, 0) == check else b""
