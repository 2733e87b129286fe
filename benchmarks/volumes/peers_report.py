"""Medians, ranges and comparisons of what `peers.py` found."""

from __future__ import annotations

import statistics
from typing import Any


def rows(found: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Medians, ranges and what was proven, for each section and row."""
    result: dict[str, Any] = {}
    for section, methods in found.items():
        for name, runs in methods.items():
            values: dict[str, list[float]] = {}
            for one in runs:
                if "files" in one:
                    if one["files"]:
                        values.setdefault("files_per_s", []).append(one["files"] / one["seconds"])
                    values.setdefault("mb_per_s", []).append(one["bytes"] / one["seconds"] / 1e6)
                    values.setdefault("client_cpu_s_per_gb", []).append(one["cpu_s"] / one["bytes"] * 1e9)
                else:
                    for key in ("samples_per_s", "stall_share", "first_batch_s", "mb_per_s", "cpu_s_per_gb"):
                        if key in one:
                            values.setdefault(key, []).append(one[key])
            row: dict[str, Any] = {key: figure(found_) for key, found_ in values.items()}
            last = runs[-1]
            row["proven"] = last.get("proven") or {
                key: last[key] for key in ("files", "bytes", "sum", "bytes_arrived") if key in last
            }
            result.setdefault(section, {})[name] = row
    return result


def figure(values: list[float]) -> dict[str, Any]:
    """The median, the range, and the values by round."""

    def short(value: float) -> float:
        return round(value, 4) if abs(value) < 10 else round(value, 1)

    return {
        "median": short(statistics.median(values)),
        "min": short(min(values)),
        "max": short(max(values)),
        "runs": [short(value) for value in values],
    }


def compared(result: dict[str, Any], key: str) -> dict[str, Any]:
    """Ours beside the best peer, beside the local disk and beside what the wire gives, by section.

    Ratios are of the same round where there are as many, then the median.
    """
    found: dict[str, Any] = {}
    for section, methods in result.items():
        have = {name: row[key] for name, row in methods.items() if key in row}
        ours = [name for name in have if name.startswith("ours")]
        peers = [name for name in have if not name.startswith(("ours", "ext4", "plain"))]
        bases = {"ext4": "ext4", "wire": "plain_chunks"}
        if peers:
            bases["best_peer"] = max(peers, key=lambda name: have[name]["median"])
        for base, of in bases.items():
            if of in have and ours:
                ratios = {name: _ratio(have[name]["runs"], have[of]["runs"]) for name in ours}
                found.setdefault(section, {})[f"to_{base}"] = {"base": of, **ratios}
    return found


def _ratio(ours: list[float], theirs: list[float]) -> float | None:
    if not all(theirs):
        return None
    if len(ours) != len(theirs):
        return round(statistics.median(ours) / statistics.median(theirs), 3)
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)
