"""Files of a home in which a provider remembers what it has asked for."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Whole or not at all, for this user only, and on the disk before anybody relies on it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def short_digest(text: str) -> str:
    """Of a name that may have any characters: 16 hexadecimal digits of its SHA-256, for names of files."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
