"""How the processes of one training work together."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.spec.hardware import Hardware
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    choice,
    integer,
    mapping_of,
    noun,
    number,
    takes,
)

#: More processes than this in one gang are a slip.
MAX_WORKERS: Final = 65536
#: A minute one way is no network.
MAX_LATENCY_MS: Final = 60_000.0
ROLES: Final = ("chief", "worker", "ps")

_SPAN = re.compile(r"([0-9]{1,6})\s*\.\.\s*([0-9]{1,6})")
_RIGHT: Final = f"write a whole number from 1 to {MAX_WORKERS}, auto, or a range such as 1..8"


class Strategy(StrEnum):
    """What averages the gradients, and when."""

    ALLREDUCE = "allreduce"
    PS_SYNC = "ps-sync"
    PS_ASYNC = "ps-async"

    @property
    def has_servers(self) -> bool:
        """True for the strategies with parameter servers."""
        return self is not Strategy.ALLREDUCE


def _workers(node: YamlNode, path: Path, problems: Problems) -> int | str:
    if node.kind is Kind.SCALAR:
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_WORKERS:
            return value
        if value == "auto":
            return "auto"
        if match := _SPAN.fullmatch(node.text.strip()):
            low, high = int(match[1]), int(match[2])
            if 1 <= low < high <= MAX_WORKERS:
                return f"{low}..{high}"
            if low == high and 1 <= low <= MAX_WORKERS:
                return low
    raise problems.refuse(node, path, f"{node.describe()}; {_RIGHT}")


takes(
    _workers,
    any=[
        {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS},
        {"type": "string", "pattern": r"^auto$|^\s*[0-9]{1,6}\s*\.\.\s*[0-9]{1,6}\s*$"},
    ],
)


class Distributed(Noun):
    """A gang.

    Attributes:
        strategy: all-reduce, or parameter servers.
        workers: training processes without parameter servers and chief: a number, ``auto``, or a span
            ``1..8`` of which the advisor chooses.
        parameter_servers: processes that hold the weights.
        chief: ``worker`` if the chief is one of the workers and trains with them; None: it is one more.
        per_node: workers on each node; None is one per GPU, else 1.
        latency_ms: between the machines, one way, milliseconds; None is what is measured.
        hardware: what a role needs beyond the experiment's hardware.
        span: what stood in the place of a number of ``workers`` that was chosen since; else empty.
        chooses_servers: the recipe does not say how many parameter servers there are.
    """

    strategy: Annotated[Strategy, Key("strategy", choice(*Strategy))] = Strategy.ALLREDUCE
    workers: Annotated[int | str, Key("workers", _workers)] = "auto"
    parameter_servers: Annotated[int, Key("parameter_servers", integer(0, MAX_WORKERS))] = 0
    chief: Annotated[str | None, Key("chief", choice("worker"))] = None
    per_node: Annotated[int | None, Key("per_node", integer(1, 1024))] = None
    latency_ms: Annotated[float | None, Key("latency_ms", number(0))] = None
    hardware: Annotated[
        dict[str, Hardware],
        Key(
            "hardware",
            mapping_of(
                noun(Hardware),
                "write hardware by role",
                name="|".join(ROLES),
                what="a role is chief, worker or ps",
            ),
        ),
    ] = Field(default={})
    span: str = ""
    chooses_servers: bool = False

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        if values.get("latency_ms", 0.0) > MAX_LATENCY_MS:
            where = node.entries["latency_ms"]
            problems.add(
                where,
                (*path, "latency_ms"),
                f"{where.describe()}; write milliseconds, one way, at most {MAX_LATENCY_MS:g}",
            )
        if "strategy" in node.entries and "strategy" not in values:
            return
        has_servers = Strategy(values.get("strategy", Strategy.ALLREDUCE)).has_servers
        servers = (
            values.setdefault("parameter_servers", int(has_servers))
            if ("parameter_servers" not in node.entries or "parameter_servers" in values)
            else None
        )
        values["chooses_servers"] = has_servers and "parameter_servers" not in node.entries
        where = node.entries.get("parameter_servers", node)
        if servers == 0 and has_servers:
            problems.add(where, (*path, "parameter_servers"), "0 with a ps strategy; write at least 1")
        elif servers and not has_servers:
            right = "leave it out, or choose strategy: ps-sync or ps-async"
            problems.add(where, (*path, "parameter_servers"), f"{servers} with strategy allreduce; {right}")
        if "chief" in values and not has_servers:
            message = "without servers worker 0 is the chief already; leave it out"
            problems.add(node.entries["chief"], (*path, "chief"), message)
        if "chief" in values and "chief" in values.get("hardware", {}):
            where = node.entries["hardware"].keys["chief"]
            message = "the chief is a worker (`chief: worker`); write worker"
            problems.add(where, (*path, "hardware", "chief"), message)

    @property
    def is_flexible(self) -> bool:
        """True if the number of workers is chosen later."""
        return isinstance(self.workers, str)

    @property
    def worker_bounds(self) -> tuple[int, int | None]:
        """Fewest and most workers; None is no limit."""
        return (self.workers, self.workers) if isinstance(self.workers, int) else _bounds(self.workers)

    def summary(self) -> dict[str, Any]:
        """What ``check --json`` shows of it."""
        return self.model_dump(mode="json", exclude={"span", "chooses_servers"})

    def sized(self, workers: int, servers: int) -> Distributed:
        """With these numbers of workers and servers; what the recipe says of them is still known."""
        span = self.workers if isinstance(self.workers, str) else self.span
        return self.model_copy(update={"workers": workers, "parameter_servers": servers, "span": span})

    @property
    def reopened(self) -> Distributed:
        """As it was before a number of workers was chosen."""
        return self.model_copy(update={"workers": self.span, "span": ""}) if self.span else self


def _bounds(span: str) -> tuple[int, int | None]:
    low, _, high = span.partition("..")
    return (int(low), int(high)) if high else (1, None)
