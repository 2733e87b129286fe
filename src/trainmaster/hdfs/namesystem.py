"""`Namesystem`: what a NameNode tells of itself and its DataNodes."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trainmaster.spec.plain_json import parsed_json

_INFO: Final = "Hadoop:service=NameNode,name=NameNodeInfo"
_TIMEOUT_S: Final = 10.0


class Namesystem(NamedTuple):
    """What a NameNode knows just now.

    Attributes:
        live: room by live DataNode whose disks are known: where it takes data, ``HOST:PORT``, with hosts
            as they call themselves.
        lost: paths of files with blocks of which no copy is left; a hundred at most.
        is_starting: it takes no writes: most often, it waits for its DataNodes to tell what they have.
        was_full: it takes none as its own disk was full, and will not by itself when there is room again.
    """

    live: Mapping[str, int]
    lost: frozenset[str]
    is_starting: bool
    was_full: bool


def ask_namenode(address: str, http_port: int) -> Namesystem:
    """Ask a NameNode.

    Raises:
        OSError: it does not answer, or says something else.
    """
    try:
        info = _bean(address, http_port, _INFO)
        nodes = parsed_json(info["LiveNodes"])
        return Namesystem(
            {
                f"{name.partition(':')[0]}:{_port(it)}": int(it["remaining"])
                for name, it in nodes.items()
                if it["capacity"]  # else it has not told yet what disks it has
            },
            frozenset(parsed_json(info["CorruptFiles"])),
            bool(info["Safemode"]),
            "Resources are low" in str(info["Safemode"]),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise OSError(f"the NameNode at {address}:{http_port} says nothing of use: {error!r}") from error


def _port(node: Mapping[str, Any]) -> str:
    return str(node["xferaddr"]).rpartition(":")[2]


def _bean(address: str, http_port: int, name: str) -> Mapping[str, Any]:
    url = f"http://{address}:{http_port}/jmx?qry={name}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        found: Mapping[str, Any] = parsed_json(answer.read())["beans"][0]
    return found
