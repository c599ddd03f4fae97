"""Signed heads: at a time, the log went to this event and had this hash (Ed25519, RFC 8032).

Kept outside the database they anchor the chain: whoever rewrites all of it, or cuts its tail, would
have to forge them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES: Final = 32


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is signed. `hash` is that of event `seq` in life `log_epoch` of the log (hexadecimal),
    `at` when it was signed (RFC 3339, as text: it is signed as it stands there)."""

    cluster: str
    log_epoch: int
    seq: Seq
    hash: str
    at: str


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head with its signature by the private part of `key`; both hexadecimal."""

    cluster: str
    log_epoch: int
    seq: Seq
    hash: str
    at: str
    key: str
    signature: str

    @property
    def head(self) -> Head:
        """What was signed."""
        return Head(
            cluster=self.cluster, log_epoch=self.log_epoch, seq=self.seq, hash=self.hash, at=self.at
        )


def signed_bytes(head: Head) -> bytes:
    """The bytes that a signature covers: a line for each field."""
    lines = ("tensorcast head 1", head.cluster, head.log_epoch, head.seq, head.hash, head.at)
    return "\n".join(map(str, lines)).encode()


def sign(head: Head, private_key: Ed25519PrivateKey) -> SignedHead:
    """The head with its signature."""
    return SignedHead(
        cluster=head.cluster,
        log_epoch=head.log_epoch,
        seq=head.seq,
        hash=head.hash,
        at=head.at,
        key=public_key_of(private_key),
        signature=private_key.sign(signed_bytes(head)).hex(),
    )


def public_key_of(private_key: Ed25519PrivateKey) -> str:
    """The public key, hexadecimal."""
    return private_key.public_key().public_bytes_raw().hex()


def parse_public_key(text: str) -> str:
    """A public key as people give it: 64 hexadecimal digits. Raises InvalidArgument."""
    key = text.strip().lower()
    if len(key) != 2 * KEY_BYTES or not set(key) <= set("0123456789abcdef"):
        raise InvalidArgument(
            "That is no public key.", hint="It has 64 hexadecimal digits: see heads.pub."
        )
    return key


def parse_head(text: str) -> SignedHead | None:
    """A signed head as it was kept; None for what is none."""
    try:
        return msgspec.json.decode(text, type=SignedHead)
    except (msgspec.MsgspecError, RecursionError):
        return None


def is_signed(signed: SignedHead, key: str) -> bool:
    """Whether the signature is by the private part of `key`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signed.signature), signed_bytes(signed.head))
    except (InvalidSignature, ValueError):
        return False
    return signed.key == key
