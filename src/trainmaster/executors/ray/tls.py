"""A certificate authority per cluster, and a certificate per node: Ray's connections are encrypted both ways.

The driver keeps the authority's key; a node gets its own key and certificate over SSH when it joins. Who has
no certificate of this cluster's gets no answer, and who listens on the network learns nothing, not even the
token. The authority is trusted by one cluster only and is gone with it, so a clock that is years off need not
keep a node from joining.
"""

from __future__ import annotations

from trainmaster.spec.errors import imports_of
from trainmaster.transport.certificates import SignedKey, make_signed_key

#: On the driver: the authority's key and certificate, in one file.
AUTHORITY_FILE = "authority.pem"
#: On a node, in its directory.
_CERTIFICATE, _KEY, _AUTHORITY = "tls.crt", "tls.key", "tls.ca"


def variables(directory: str) -> dict[str, str]:
    """What every process needs that speaks to a cluster, given the node's directory."""
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": f"{directory}/{_CERTIFICATE}",
        "RAY_TLS_SERVER_KEY": f"{directory}/{_KEY}",
        "RAY_TLS_CA_CERT": f"{directory}/{_AUTHORITY}",
    }


class CertificateAuthority(SignedKey):
    """Signs the certificates of one cluster, whose nodes trust its own and no other."""

    @classmethod
    def make(cls) -> CertificateAuthority:
        """A new one."""
        with imports_of("ray", "a cluster's key"):
            made = make_signed_key("trainmaster cluster", signs=True)
        return cls(made.key, made.certificate)

    @classmethod
    def load(cls, text: str) -> CertificateAuthority:
        """The contrary of `as_text`."""
        private, end, certificate = text.partition("-----END PRIVATE KEY-----\n")
        return cls(private + end, certificate)

    def as_text(self) -> str:
        """For `load`; to be written where only we can read it."""
        return self.key + self.certificate

    def files(self, address: str) -> dict[str, str]:
        """What a node needs besides: name of a file in its directory -> content.

        Args:
            address: at which the other nodes reach it.
        """
        with imports_of("ray", "a node's key"):  # Ray's processes of a node speak at the second address
            made = make_signed_key(f"trainmaster node {address}"[:64], [address, "127.0.0.1"], self)
        return {_CERTIFICATE: made.certificate, _KEY: made.key, _AUTHORITY: self.certificate}
