from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tensorcast.access.nats import distrust, make_signer, make_tls
from tensorcast.deploy.certificates import issue, main, make_authority
from tensorcast.schema.access import Access
from tensorcast.schema.errors import InvalidArgument, PermissionDenied


class OtherClient:
    """A release of nats-py that is not known."""


def test_certificates_that_are_not_there_are_named(tmp_path: Path):
    assert make_tls(Access()) is None
    with pytest.raises(InvalidArgument, match="certificates for NATS cannot be used"):
        make_tls(Access(ca=str(tmp_path / "ca.pem")))


def test_a_key_that_cannot_be_used_is_said(tmp_path: Path):
    assert make_signer(OtherClient(), Access()) is None
    access = Access(credentials=str(tmp_path / "k.nk"), identity="user.ada")
    with pytest.raises(InvalidArgument, match="nats-py"):
        make_signer(OtherClient(), access)
    client = OtherClient()
    client._public_nkey = None
    with pytest.raises(PermissionDenied, match="cannot be read"):
        make_signer(client, access)


def test_only_certificates_are_distrusted():
    assert distrust(ConnectionRefusedError(), "h:1") is None
    assert distrust(ssl.SSLEOFError("EOF"), "h:1") is None
    wrong = ssl.SSLCertVerificationError("x")
    wrong.verify_message = "self-signed certificate in certificate chain"
    assert "h:1 is not trusted: self-signed" in str(distrust(wrong, "h:1"))


def test_an_authority_and_its_certificates_are_made_once(tmp_path: Path):
    folder = tmp_path / "tls"
    arguments = [str(folder), "--server", "nats-1.example,10.0.0.1", "--client", "n1"]
    assert main(arguments) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {
        *("ca.pem", "ca-key.pem", "n1.pem", "n1-key.pem"),
        *("nats-1.example.pem", "nats-1.example-key.pem"),
    }
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert main(arguments) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    access = Access(
        ca=str(folder / "ca.pem"),
        certificate=str(folder / "n1.pem"),
        key=str(folder / "n1-key.pem"),
    )
    assert make_tls(access).verify_mode is ssl.CERT_REQUIRED


def test_without_the_authoritys_key_nothing_is_signed(tmp_path: Path):
    make_authority(tmp_path / "tls")
    (tmp_path / "tls" / "ca-key.pem").unlink()
    with pytest.raises(InvalidArgument, match="no certificate authority"):
        issue(tmp_path / "tls", "n1")
