"""What a paper claims, and what came of it here: each claim is yes, or no with the reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: More running processes per core than this, and times are those of other work, too.
BUSY = 1.5


@dataclass(frozen=True)
class Seen:
    """What was seen of one claim.

    Attributes:
        holds: whether it came out.
        here: our number, or what happened.
        otherwise: what it means where it did not come out.
    """

    holds: bool
    here: str
    otherwise: str


@dataclass(frozen=True)
class Claim:
    """A claim and its answer.

    Attributes:
        text: what is claimed.
        paper: the paper's number, or where it says so.
        here: ours; empty if nothing was measured.
        holds: whether it came out.
        reason: why not; empty where it holds.
    """

    text: str
    paper: str
    here: str
    holds: bool
    reason: str = ""


def answered(
    claims: Mapping[str, str], seen: Mapping[str, Seen], missing: str, machine: Mapping[str, Any]
) -> list[Claim]:
    """All claims with their answers, in their order.

    Args:
        claims: the paper's numbers by claim.
        seen: what was seen, by claim.
        missing: why a claim was not looked at.
        machine: cores and load, which are part of a reason.

    Raises:
        ValueError: something was seen that nobody claims.

    >>> numbers = {"twice as fast": "2.0", "half the price": "0.5", "no losses": "0"}
    >>> seen = {"twice as fast": Seen(True, "2.1", ""), "half the price": Seen(False, "0.7", "spot was dear")}
    >>> for claim in answered(numbers, seen, "not with --quick", {"cores": 2, "load": 9.0}):
    ...     print(claim.holds, claim.here, claim.reason)
    True 2.1
    False 0.7 spot was dear (load 9 on 2 cores when it began)
    False  not with --quick
    """
    if unknown := seen.keys() - claims.keys():
        raise ValueError(f"nobody claims {sorted(unknown)}")
    is_busy = machine["load"] > BUSY * machine["cores"]
    busy = f" (load {machine['load']:.0f} on {machine['cores']} cores when it began)" if is_busy else ""
    found = []
    for text, paper in claims.items():
        if text not in seen:
            found.append(Claim(text, paper, "", False, missing))
            continue
        one = seen[text]
        found.append(Claim(text, paper, one.here, one.holds, "" if one.holds else one.otherwise + busy))
    return found


def tried(claims: Iterable[str], look: Callable[[], Iterable[Seen]]) -> dict[str, Seen]:
    """What a part of an experiment has seen, in the order of its claims; if it fails, none of them came out.

    >>> tried(["one", "two"], lambda: 1 / 0)["two"]
    Seen(holds=False, here='', otherwise='it failed: ZeroDivisionError: division by zero')
    """
    try:
        return dict(zip(claims, look(), strict=True))
    except Exception as error:  # noqa: BLE001 - the other parts go on
        traceback.print_exc()
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        why = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
        return dict.fromkeys(claims, Seen(False, "", f"it failed: {why[:400]}"))


def rows(claims: Iterable[Claim]) -> list[list[str]]:
    """Of a table: claim, the paper's number, ours, yes or no, the reason."""
    return [
        [each.text, each.paper, each.here, "yes" if each.holds else "**NO**", each.reason] for each in claims
    ]


def plain(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [asdict(each) for each in claims]


HEAD = ("claim", "paper", "here", "", "reason")
