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


#: The least that a file reserves while it is written.
UNIT_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 128 << 20
_SHOWN: Final = 4


def block_bytes(size_bytes: int) -> int:
    """Block size for a file: a small one is not to reserve a large block on each DataNode.

    >>> [block_bytes(size) >> 20 for size in (0, 5, 3 << 20, 1 << 40)]
    [1, 1, 3, 128]
    """
    units = -(-size_bytes // UNIT_BYTES)
    return min(max(units, 1) * UNIT_BYTES, _BLOCK_BYTES)


def fits(free_bytes: Mapping[str, int], wanted_bytes: int, copies: int) -> bool:
    """Whether there is room; no DataNode holds two copies of the same.

    Args:
        free_bytes: by DataNode.
        wanted_bytes: of data, without their copies.
        copies: of each block; as many as there are DataNodes, if they are fewer.

    >>> fits({"a": 90, "b": 10}, 50, 2), fits({"a": 90, "b": 30, "c": 20}, 50, 2), fits({"a": 50}, 50, 2)
    (False, True, True)
    """
    return sum(min(room, wanted_bytes) for room in free_bytes.values()) >= wanted_bytes * min(
        copies, len(free_bytes)
    )


def lack_of_room(
    free_bytes: Mapping[str, int], wanted_bytes: int, copies: int, directory: str, in_writing_bytes: int = 0
) -> str:
    """What lacks where, in words; the fullest DataNodes first.

    Args:
        free_bytes: by DataNode.
        wanted_bytes: of data that are not there yet, without their copies.
        copies: of each block.
        directory: where the DataNodes keep them.
        in_writing_bytes: what must be free besides while files are written.

    >>> lack_of_room({"10.0.0.2:50": 7_000_000, "10.0.0.1:50": 10}, 2_000_000_000, 2, "/d")
    'HDFS has no room for 2.0 GB in 2 copies: 10 bytes are free at 10.0.0.1, 7.0 MB at 10.0.0.2 (in /d)'
    """
    least = sorted(free_bytes.items(), key=lambda each: each[1])
    free = [(in_words(room), node.partition(":")[0]) for node, room in least[:_SHOWN]]
    shown = [f"{size}{'' if number else ' are free'} at {node}" for number, (size, node) in enumerate(free)]
    more = [f"more at {len(least) - _SHOWN} others"] if len(least) > _SHOWN else []
    times = f" in {copies} copies" if copies > 1 else ""
    besides = f", and {in_words(in_writing_bytes)} more while files are written" if in_writing_bytes else ""
    return (
        f"HDFS has no room for {in_words(wanted_bytes)}{times}{besides}: "
        f"{', '.join([*shown, *more])} (in {directory})"
    )


def in_words(size_bytes: int) -> str:
    """Bytes, with the unit that fits.

    >>> in_words(999), in_words(1_234_567)
    ('999 bytes', '1.2 MB')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"
