"""A private certificate authority, and certificates of servers and clients, for TLS of NATS and
Postgres: `python -m tensorcast.deploy.certificates FOLDER --server HOST --client NAME`.

Keys are ECDSA P-256, each in a file of mode 0600. Files that are there stay: run it again for one
more host. Whoever has `ca-key.pem` can make certificates: keep it elsewhere.
"""

from __future__ import annotations

import argparse
import ipaddress
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tensorcast.deploy.home import make_folder, write_private
from tensorcast.schema.errors import InvalidArgument

AUTHORITY: Final = "ca"
DAYS: Final = 825
AUTHORITY_DAYS: Final = 3650
_EARLY: Final = timedelta(hours=1)
"""So much before now a certificate begins: clocks differ."""


def make_authority(folder: Path) -> Path:
    """The authority's certificate, `ca.pem`, made with its key when there is none."""
    made = folder / f"{AUTHORITY}.pem"
    if made.exists():
        return made
    make_folder(folder, 0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("TensorCast private CA")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    _write(folder, AUTHORITY, builder.sign(key, SHA256()), key)
    return made


def issue(folder: Path, name: str, hosts: Sequence[str] = ()) -> tuple[Path, Path]:
    """The certificate `<name>.pem` and its key `<name>-key.pem`, made when there are none: of a
    server that is reached by `hosts` (names and addresses), or without any of a client. Raises
    InvalidArgument for a folder without an authority."""
    made = folder / f"{name}.pem", folder / f"{name}-key.pem"
    if all(path.exists() for path in made):
        return made
    authority, authority_key = _load_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    purposes = [purpose]
    if hosts:  # servers of a NATS cluster are clients of each other
        purposes.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(_name(name), authority.subject, key, DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(known, critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    _write(folder, name, builder.sign(authority_key, SHA256()), key)
    return made


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - _EARLY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{AUTHORITY}.pem").read_bytes())
        pem = (folder / f"{AUTHORITY}-key.pem").read_bytes()
        key = load_pem_private_key(pem, None)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{folder} has no certificate authority that can be used.",
            hint=f"Bring back {AUTHORITY}-key.pem, or name another folder.",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgument(f"The key of the authority in {folder} is of another kind.")
    return certificate, key


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(folder / f"{name}-key.pem", secret)
    write_private(folder / f"{name}.pem", certificate.public_bytes(Encoding.PEM))


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes what is missing and names the files."""
    parser = argparse.ArgumentParser(prog="tensorcast.deploy.certificates", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files are")
    parser.add_argument("--server", action="append", default=[], metavar="HOST[,HOST...]")
    parser.add_argument("--client", action="append", default=[], metavar="NAME")
    chosen = parser.parse_args(arguments)
    try:
        made = [make_authority(chosen.folder)]
        for names in chosen.server:
            hosts = [name for name in names.split(",") if name]
            made += issue(chosen.folder, hosts[0], hosts)
        for name in chosen.client:
            made += issue(chosen.folder, name)
    except (InvalidArgument, ValueError, IndexError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
