"""`self_signed`: a certificate that the home signs itself, for a server without another one."""

from __future__ import annotations

import hashlib
import socket
from datetime import timedelta
from pathlib import Path
from typing import Final

from trainmaster.spec.errors import imports_of
from trainmaster.spec.private_files import create_private
from trainmaster.transport.certificates import make_signed_key

_EARLY: Final = timedelta(days=1)


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
    if not path.exists():  # who has logged in trusts this very certificate
        names = dict.fromkeys((host, socket.gethostname(), "localhost", "127.0.0.1"))
        made = make_signed_key("Trainmaster", names, early=_EARLY)
        # If another server of this home was quicker, its own counts.
        create_private(path, f"{made.certificate}{made.key}".encode())
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return path, hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
