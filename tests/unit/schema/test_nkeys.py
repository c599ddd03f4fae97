import base64
import re

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.nkeys import Credentials, Signer, parse_credentials

SECRETS = st.binary(min_size=32, max_size=32)
# The pair that the README of https://github.com/nats-io/nats.py shows.
KNOWN_SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
KNOWN_PUBLIC = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"


@given(SECRETS)
def test_a_key_survives_its_file(secret):
    found = parse_credentials(f"# a key\n{Credentials(secret).seed}\n")
    assert found == Credentials(secret)
    assert found.public.startswith("U")
    assert len(found.public) == 56


def test_the_texts_are_those_of_the_tools_of_nats():
    found = parse_credentials(KNOWN_SEED)
    assert found.seed == KNOWN_SEED
    assert found.public == KNOWN_PUBLIC


@given(SECRETS, st.binary(max_size=64))
def test_a_signature_is_that_of_the_public_key(secret, nonce):
    key = Credentials(secret)
    raw = base64.b32decode(key.public)[1:33]
    Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(key.sign(nonce)), nonce)
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(raw).verify(
            base64.b64decode(key.sign(nonce + b"!")), nonce
        )


def test_a_creds_file_has_a_jwt_too():
    text = (
        "-----BEGIN NATS USER JWT-----\neyJ0eXAi.abc\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{KNOWN_SEED}\n------END USER NKEY SEED------\n"
    )
    assert parse_credentials(text).jwt == "eyJ0eXAi.abc"


@pytest.mark.parametrize("text", ["", "SU", KNOWN_SEED[:-2] + "AU", KNOWN_PUBLIC, "SU" + "A" * 56])
def test_what_is_no_seed_is_refused_and_not_shown(text):
    with pytest.raises(InvalidArgument) as refused:
        parse_credentials(text)
    assert not re.search(r"SU[A-Z2-7]{20}", str(refused.value))


def test_nobody_sees_the_secret_in_a_printed_key():
    key = parse_credentials(KNOWN_SEED)
    assert KNOWN_SEED not in repr(key)
    assert repr(key.secret) not in repr(key)


def test_a_rotated_key_signs_the_next_connection_and_a_broken_file_changes_nothing():
    texts = {"now": Credentials(b"1" * 32).seed}
    adopted: list[str] = []
    signer = Signer(lambda: texts["now"], adopted.append)
    signer.sign("nonce")
    texts["now"] = Credentials(b"2" * 32).seed
    signed = signer.sign("nonce")
    texts["now"] = "half of a fi"
    assert signer.sign("nonce") == signed
    assert adopted == [Credentials(b"1" * 32).public, *[Credentials(b"2" * 32).public] * 2]
