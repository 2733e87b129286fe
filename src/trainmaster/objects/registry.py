"""Object stores by scheme: built in first, then installed plug-ins, loaded when they are first used."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import MissingPartError, UsageError

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
        UsageError: nobody knows it.
    """
    scheme = _SAME.get(scheme, scheme)
    if scheme in factories or scheme in BUILT_IN or scheme in (plugins := _plugins()):
        return scheme
    *others, last = (*_EXAMPLES, *(f"{name}://..." for name in sorted(plugins)))
    raise UsageError(
        f"{url}: {scheme}:// is no object store Trainmaster knows.",
        f"Use {', '.join(others)} or {last}; a plug-in for another one is installed with pip "
        f"(entry point {GROUP!r}).",
    )


def backend_of(scheme: str, rest: str) -> "Backend":
    """The backend of a URL, as `trainmaster.objects.urls.split_url` splits it.

    Raises:
        MissingPartError: a plug-in has the scheme, but cannot be loaded.
        PublishError: it cannot be opened.
    """
    if scheme not in factories:
        factories[scheme] = _loaded(scheme)
    return factories[scheme](rest)


def _loaded(scheme: str) -> "Callable[[str], Backend]":
    if scheme in BUILT_IN:
        module, _, name = BUILT_IN[scheme].partition(":")
        own: Callable[[str], Backend] = getattr(import_module(module), name)
        return own
    place, load = _plugins()[scheme]
    try:
        return load()
    except Exception as error:  # a plug-in may raise anything while it loads
        raise MissingPartError(
            f"the object store {scheme}:// ({place}) is installed but cannot be loaded: {error}",
            "Install what it needs, or remove it.",
        ) from error


def _plugins() -> "dict[str, tuple[str, Callable[[], Callable[[str], Backend]]]]":
    from importlib.metadata import entry_points  # reads every installed package: only if needed

    return {point.name: (point.value, point.load) for point in entry_points(group=GROUP)}
