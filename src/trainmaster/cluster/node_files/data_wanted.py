"""`Wanted`: data as nodes are asked for them, and what follows from where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.control.task.job_context import RelayError, TaskContext
from trainmaster.dataclass import dataclass, field
from trainmaster.objects.delegated_credentials import DelegatedCredentials, store_environment, store_host
from trainmaster.objects.narrowing import Grant
from trainmaster.objects.plugins import split_url

GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Wanted:
    """Data as nodes are asked for them.

    Attributes:
        name: in the recipe.
        there: the directory on nodes.
        order: for the program.
        uris: what nodes must be able to read, one per store.
        credentials: with which they can; see `DelegatedCredentials`.
        tables: of a volume: makes its columns here, and says where they lie.
        size_bytes: of its files, as far as that is known.
    """

    name: str
    there: str
    order: Mapping[str, Any]
    uris: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    tables: Callable[[], Path] | None = None
    size_bytes: int = 0


def gigabytes(wanted: Wanted) -> str:
    """How large it is, in words."""
    return f"{wanted.size_bytes / GB:.1f} GB"


def with_keys(credentials: DelegatedCredentials, wanted: Wanted) -> Wanted:
    """With what nodes need to read it: of this moment, as it runs out, and is made again.

    Raises:
        TooWideKeysError: our keys are good for more; see `DelegatedCredentials.environment`.
    """
    return replace(wanted, credentials=credentials.environment([Grant(uri) for uri in wanted.uris]) or {})


def require_lendable(uris: Sequence[str]) -> None:
    """Refuse what only this machine can use, without asking anybody.

    Raises:
        RelayError: one is such.
    """
    for uri in uris:
        if urlsplit(uri).scheme == "file" or store_environment(uri) is None:
            raise RelayError(f"{uri} can be used on this machine only")


def is_contained(context: TaskContext, volume: str) -> bool:
    """Whether any experiment of the run has a volume in a container: they all find it at the same place."""
    return any(
        experiment.container is not None and any(s.volume == volume for s in experiment.data.values())
        for experiment in context.recipe.experiments.values()
    )


def hosts(wanted: Wanted) -> list[str]:
    """Names or addresses of servers that nodes have to reach."""
    if wanted.order["do"] == "url" and not wanted.uris:
        return [urlsplit(wanted.order["url"]).hostname or ""]
    return [store_host(uri) for uri in wanted.uris]


def sources(wanted: Wanted) -> list[str]:
    """The stores it comes from, or the server."""
    if wanted.uris:
        return [store_of(uri) for uri in wanted.uris]
    found = urlsplit(wanted.order.get("url", ""))
    return [f"{found.scheme}://{found.netloc.rpartition('@')[2]}"]


def store_of(uri: str) -> str:
    """What is asked for once.

    >>> store_of("s3://bucket/volumes/x")
    's3://bucket'
    """
    scheme, rest = split_url(uri)
    return f"{scheme}://{rest.partition('/')[0]}"
