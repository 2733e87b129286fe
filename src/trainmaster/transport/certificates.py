"""`SignedKey`: a key for TLS that is made here, with its certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from trainmaster.dataclass import dataclass

#: So long after it was made a certificate is taken.
LASTS: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class SignedKey:
    """Both in PEM. key: the private half. certificate: of the public half."""

    key: str
    certificate: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # never the key


def make_signed_key(
    subject: str,
    names: Iterable[str] = (),
    by: SignedKey | None = None,
    *,
    signs: bool = False,
    early: timedelta = LASTS,
) -> SignedKey:
    """A new one.

    Args:
        subject: whose it is.
        names: host names and addresses by which it is reached.
        by: who signs it, for both ends of a connection; None for itself.
        signs: it may sign others.
        early: so long before it was made its certificate is taken, too, where clocks differ.

    Raises:
        ImportError: what makes keys is not installed.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    signing: Any = key
    issuer = own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True)
    ]
    if known_as := [_name(each) for each in names]:
        extensions.append((x509.SubjectAlternativeName(known_as), False))
    if by is not None:
        signer = x509.load_pem_x509_certificate(by.certificate.encode())
        signing, issuer = form.load_pem_private_key(by.key.encode(), None), signer.subject
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        extensions.append((x509.ExtendedKeyUsage(uses), False))
        whose = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
        extensions.append((whose, False))
    built = x509.CertificateBuilder(issuer, own, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - early).not_valid_after(now + LASTS)
    for extension, critical in extensions:
        built = built.add_extension(extension, critical)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    certificate = built.sign(signing, hashes.SHA256()).public_bytes(form.Encoding.PEM)
    return SignedKey(private.decode(), certificate.decode())


def _name(known_as: str) -> Any:  # noqa: ANN401 - x509.GeneralName
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(known_as))
    except ValueError:
        return x509.DNSName(known_as)
