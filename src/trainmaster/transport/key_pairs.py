"""`KeyPair`: a key for SSH that is made here."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.transport.ssh import load_asyncssh


@dataclass(frozen=True, slots=True)
class KeyPair:
    """private: in OpenSSH's format. public: ``type base64``."""

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"  # never the other one


def make_key_pair() -> KeyPair:
    """A new one."""
    key = load_asyncssh().generate_private_key("ssh-ed25519")
    public = key.export_public_key("openssh").decode().split()
    return KeyPair(key.export_private_key("openssh").decode(), " ".join(public[:2]))
