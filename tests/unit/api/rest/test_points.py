"""What tasks have reported, as lines of JSON."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.api.rest.lookups import points

ROWS = [{"task": 0, "step": step, "loss": float(loss)} for step, loss in enumerate(("1", "nan", "-inf"))]


async def _lines(lines: Any) -> Any:
    for line in lines:
        yield line


@pytest.mark.parametrize(("nan", "losses"), [(False, [1.0, None, None]), (True, [1.0, "NaN", "-Infinity"])])
def test_json_has_no_nan_unless_it_is_asked_for(nan: bool, losses: list[object]) -> None:
    runs: Any = SimpleNamespace(points=lambda *_: iter(ROWS))
    transfer: Any = SimpleNamespace(sent=_lines)

    async def told() -> list[str]:
        return [str(line) async for line in points("r-1", runs, transfer, nan=nan).body_iterator]

    found = [json.loads(line, parse_constant=str)["loss"] for line in asyncio.run(told())]
    assert found == losses
