"""`KeyPair`: a key for SSH that is made here."""

from __future__ import annotations

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import MissingPartError


@dataclass(frozen=True, slots=True)
class KeyPair:
    """private: in OpenSSH's format. public: ``type base64``."""

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"  # never the other one


def make_key_pair() -> KeyPair:
    """A new one.

    Raises:
        MissingPartError: what makes keys is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingPartError(
            f"an SSH key cannot be made without cryptography, which is not installed ({error})",
            "Install it: pip install cryptography.",
        ) from None
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode())
