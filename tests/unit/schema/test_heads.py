"""A signed head cannot be changed, nor signed by somebody else."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.heads import (
    Head,
    is_signed,
    parse_head,
    parse_public_key,
    public_key_of,
    sign,
    signed_bytes,
)
from tensorcast.schema.ids import Seq

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
HEAD = Head(cluster="c", log_epoch=1, seq=Seq(9), hash="ab" * 32, at="2030-01-01T00:00:00+00:00")
CHANGES = {"cluster": "d", "log_epoch": 2, "seq": Seq(10), "hash": "ac" * 32, "at": "2031"}


def test_a_head_is_signed_and_survives_being_kept():
    signed = sign(HEAD, KEY)
    kept = parse_head(msgspec.json.encode(signed).decode())
    assert kept == signed
    assert kept.head == HEAD
    assert is_signed(kept, public_key_of(KEY))


@pytest.mark.parametrize("field", CHANGES)
def test_no_field_can_be_changed(field):
    changed = msgspec.structs.replace(sign(HEAD, KEY), **{field: CHANGES[field]})
    assert not is_signed(changed, public_key_of(KEY))
    assert signed_bytes(changed.head) != signed_bytes(HEAD)


def test_another_key_is_no_signature():
    other = public_key_of(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    signed = sign(HEAD, KEY)
    assert not is_signed(signed, other)
    assert not is_signed(msgspec.structs.replace(signed, key=other), other)
    assert not is_signed(msgspec.structs.replace(signed, key=other), public_key_of(KEY))
    assert not is_signed(msgspec.structs.replace(signed, signature="zz"), public_key_of(KEY))


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nothing", '{"cluster":1}'])
def test_what_is_no_head_is_none(text):
    assert parse_head(text) is None


def test_a_public_key_is_64_digits():
    key = public_key_of(KEY)
    assert parse_public_key(f" {key.upper()}\n") == key
    for text in ("", "ab", "x" * 64, key + "0"):
        with pytest.raises(InvalidArgument, match="public key"):
            parse_public_key(text)
