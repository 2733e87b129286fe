"""`self_signed`: a certificate that the home signs itself, for a server without another one."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import socket
from pathlib import Path
from typing import Final

from trainmaster.spec.errors import imports_of
from trainmaster.spec.private_files import create_private

#: Who has logged in trusts this very certificate: a new one would have everybody log in again.
_LASTS: Final = datetime.timedelta(days=3650)


def self_signed(root: Path, host: str) -> tuple[Path, str]:
    """The PEM file with certificate and key, made at the first call; and the SHA-256 of the certificate.

    Args:
        root: of the home; the file stays there.
        host: by which others reach the server; the certificate of an earlier call keeps the name it has.

    Raises:
        MissingPartError: the extra ``server`` is not installed.
    """
    with imports_of("server", "--self-signed"):
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding
    path = root / "server.pem"
    if not path.exists():
        create_private(path, _made(host))  # if another server of this home was quicker, its own counts
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return path, hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def _made(host: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trainmaster")])
    names: list[x509.GeneralName] = []
    for each in dict.fromkeys((host, socket.gethostname(), "localhost", "127.0.0.1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(each)))
        except ValueError:
            names.append(x509.DNSName(each))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + secret
