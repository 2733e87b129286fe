"""URLs of object stores; a bare path is one of files."""

import os
import re
from pathlib import Path

from trainmaster.objects.registry import BUILT_IN, known_scheme
from trainmaster.spec.errors import UsageError

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)


def split_url(url: str) -> tuple[str, str]:
    """Splits a URL or bare path into a scheme and the rest without a trailing ``/``.

    For ``file`` the rest is an absolute path.

    Raises:
        UsageError: no such kind of store.
    """
    if match := _URL.fullmatch(url):
        scheme, rest = match[1].lower(), match[2]
        if scheme == "file":
            rest = rest.removeprefix("localhost")
            if not rest.startswith("/"):
                raise UsageError(f"{url}: a file:// URL needs an absolute path.", "Write file:///path.")
            return scheme, os.path.normpath(_unquoted(rest)).replace("//", "/", 1)
        scheme = known_scheme(scheme, url)
        rest = rest.rstrip("/")
        if ":" in rest.partition("/")[0].rpartition("@")[0]:
            raise UsageError(
                f"{url}: a store's URL holds no password; it would be written down with every object's name.",
                "Credentials come from the environment: AWS_*, GOOGLE_*, AZURE_*.",
            )
        if not rest or (rest.startswith("/") and scheme in BUILT_IN):
            raise UsageError(f"{url}: no bucket is named.", f"Write {scheme}://BUCKET/PREFIX.")
        if {".", ".."} & set(rest.split("/")):
            raise UsageError(f"{url}: objects have no `.` and `..` in their names.", "Write the URL without.")
        return scheme, rest
    if not url:
        raise UsageError(
            "An empty text names no object store.", "Write a path or a URL such as s3://bucket/x."
        )
    return "file", os.path.normpath(Path(url).expanduser().absolute())


def joined_url(scheme: str, rest: str) -> str:
    """The URL of what `split_url` gives.

    >>> joined_url(*split_url("/data/50%"))
    'file:///data/50%25'
    """
    return f"{scheme}://{quoted(rest) if scheme == 'file' else rest}"


def quoted(path: str) -> str:
    """A path, or a piece of one, as `file://` has it."""
    # Only what the way back would misread: a URL that a person can read and paste is worth more.
    return path.replace("%", "%25")


def _unquoted(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path, errors="surrogateescape")
