"""Object stores by scheme: built in first, then installed plug-ins, loaded when they are first used."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainmaster.objects.backend import Backend
from trainmaster.spec.errors import UsageError
from trainmaster.spec.plugins import PluginRegistry

#: Entry points of plug-ins: a scheme -> what makes a `Backend` of the rest of a URL.
GROUP: Final = "trainmaster.stores"

#: A scheme of our own -> the module and class of its backend; URLs begin with a bucket or host there.
BUILT_IN: Final = {
    "file": "trainmaster.objects.local:LocalBackend",
    "s3": "trainmaster.objects.s3:S3Backend",
    "gs": "trainmaster.objects.gs:GoogleBackend",
    "az": "trainmaster.objects.az:AzureBackend",
    "hdfs": "trainmaster.objects.webhdfs:WebHdfsBackend",
    "memory": "trainmaster.objects.memory:MemoryBackend",
}
_STORES: Final = PluginRegistry("object store", BUILT_IN, group=GROUP)
_SAME: Final = {"s3a": "s3"}
_EXAMPLES: Final = (
    "file:///path",
    "s3://bucket/prefix",
    "gs://bucket/prefix",
    "az://container/prefix",
    "hdfs://namenode/path",
)
#: Those that were used; what stands in for a store in tests is put here.
factories: dict[str, "Callable[[str], Backend]"] = {}


def known_scheme(scheme: str, url: str) -> str:
    """The scheme of a kind of store by one of its names.

    Raises:
        UsageError: the scheme is unknown.
    """
    scheme = _SAME.get(scheme, scheme)
    if scheme in factories or scheme in BUILT_IN or scheme in (plugins := _STORES.plug_ins()):
        return scheme
    *others, last = (*_EXAMPLES, *(f"{name}://..." for name in sorted(plugins)))
    raise UsageError(
        f"{url}: {scheme}:// is no object store Trainmaster knows.",
        f"Use {', '.join(others)} or {last}; a plug-in for another one is installed with pip "
        f"(entry point {GROUP!r}).",
    )


def package_of(url: str) -> str | None:
    """The package that brings the kind of store that a URL is of; None if it is built in, or no store's."""
    scheme, mark, _ = url.partition("://")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if not mark or scheme in BUILT_IN or scheme in ("http", "https"):
        return None
    point = _STORES.plug_ins().get(scheme)
    return point.dist.name if point is not None and point.dist is not None else None


def backend_of(scheme: str, rest: str) -> "Backend":
    """The backend of a URL, as `trainmaster.objects.plugins.split_url` splits it.

    Raises:
        MissingPartError: a plug-in has the scheme, but cannot be loaded.
        PublishError: it cannot be opened.
    """
    if scheme not in factories:
        factories[scheme] = _STORES.load(scheme)
    return factories[scheme](rest)


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
