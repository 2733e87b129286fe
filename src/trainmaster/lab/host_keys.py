"""Keys for ssh: of hosts, and the key pair that the lab brings."""

from __future__ import annotations

from trainmaster.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SshKey:
    """An Ed25519 key.

    Attributes:
        private: as OpenSSH keeps it in a file.
        public: one line, ``ssh-ed25519 AAAA...``.
    """

    private: str
    public: str

    @classmethod
    def generate(cls) -> SshKey:
        """A new one."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        return cls(private.decode(), public.decode())
