"""A certificate authority per cluster, and a certificate per node: Ray's connections are encrypted both ways.

The driver keeps the authority's key; a node gets its own key and certificate over SSH when it joins. Who has
no certificate of this cluster's gets no answer, and who listens on the network learns nothing, not even the
token.
"""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING, Any

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import imports_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

#: On the driver: the authority's key and certificate, in one file.
AUTHORITY_FILE = "authority.pem"
#: On a node, in its directory.
_CERTIFICATE, _KEY, _AUTHORITY = "tls.crt", "tls.key", "tls.ca"
#: The authority is trusted by one cluster only and is gone with it, so a clock that is years off need not
#: keep a node from joining.
_VALID = datetime.timedelta(days=3650)


def variables(directory: str) -> dict[str, str]:
    """What every process needs that speaks to a cluster, given the node's directory."""
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": f"{directory}/{_CERTIFICATE}",
        "RAY_TLS_SERVER_KEY": f"{directory}/{_KEY}",
        "RAY_TLS_CA_CERT": f"{directory}/{_AUTHORITY}",
    }


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs the certificates of one cluster.

    Attributes:
        certificate: in PEM; every node trusts it and no other.
    """

    certificate: str
    _key: EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return "Authority()"  # never its key

    @classmethod
    def make(cls) -> Authority:
        """A new one."""
        x509, ec, hashes = _library()
        key = ec.generate_private_key(ec.SECP256R1())
        built = (
            _builder("trainmaster cluster", "trainmaster cluster")
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(_pem(built), key)

    @classmethod
    def load(cls, text: str) -> Authority:
        """The contrary of `as_text`."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        private, end, certificate = text.partition("-----END PRIVATE KEY-----\n")
        key: Any = load_pem_private_key((private + end).encode(), None)
        return cls(certificate, key)

    def as_text(self) -> str:
        """For `load`; to be written where only we can read it."""
        return _private(self._key) + self.certificate

    def files(self, address: str) -> dict[str, str]:
        """What a node needs besides: name of a file in its directory -> content.

        Args:
            address: at which the other nodes reach it.
        """
        x509, ec, hashes = _library()
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        signer = x509.load_pem_x509_certificate(self.certificate.encode())
        # The second one is for what Ray's processes of a node have to say to each other.
        names = [_name(each) for each in (address, "127.0.0.1")]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = (
            _builder(f"trainmaster node {address}"[:64], "trainmaster cluster")
            .public_key(key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return {_CERTIFICATE: _pem(built), _KEY: _private(key), _AUTHORITY: self.certificate}


def _library() -> tuple[Any, Any, Any]:
    """What makes keys and certificates: ``x509``, ``ec``, ``hashes``."""
    with imports_of("ray", "a cluster's key"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    return x509, ec, hashes


def _builder(subject: str, issuer: str) -> Any:  # noqa: ANN401 - x509.CertificateBuilder
    x509, _, _ = _library()
    now = datetime.datetime.now(datetime.UTC)

    def name(common: str) -> Any:  # noqa: ANN401
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])

    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )


def _name(address: str) -> Any:  # noqa: ANN401 - x509.GeneralName
    x509, _, _ = _library()
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _pem(certificate: Any) -> str:  # noqa: ANN401
    from cryptography.hazmat.primitives.serialization import Encoding

    return str(certificate.public_bytes(Encoding.PEM).decode())


def _private(key: Any) -> str:  # noqa: ANN401
    from cryptography.hazmat.primitives import serialization as form

    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return str(pem.decode())
