"""Object stores by scheme: built in first, then installed plug-ins, loaded when they are first used."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import UsageError
from trainmaster.spec.plugins import PluginRegistry

if TYPE_CHECKING:
    from trainmaster.objects.backend import Backend

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
    """The backend of a URL, as `trainmaster.objects.urls.split_url` splits it.

    Raises:
        MissingPartError: a plug-in has the scheme, but cannot be loaded.
        PublishError: it cannot be opened.
    """
    if scheme not in factories:
        factories[scheme] = _STORES.load(scheme)
    return factories[scheme](rest)
