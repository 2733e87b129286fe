"""What names of metrics tell: which say how good something is, and so come first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trainmaster.lazy import regex

#: As part of a pattern: names of results, which parts of other names may stand before.
RESULTS: Final = (
    r"(?:log)?loss|accuracy|(?:acc|prec)@?\d{1,2}|acc|auc|f1|mae|mse|rmse|mape|r2|perplexity|ppl|bleu|wer|cer|"
    r"m?iou|reward|ep_rew_mean|(?<=[_/])return|residual|lower[_ ]bound|elbo"
)
_HOW_FAR: Final = ("step", "epoch")
_SAYS_HOW_GOOD: Final = regex(rf"loss|accuracy|reward|(?<![a-z])(?:{RESULTS})(?![a-z])", re.I)
_IS_SET: Final = frozenset({"lr", "learning_rate", "grad_norm"})
#: What a script may report of its own length.
TOTAL_STEPS: Final = "total_steps"
#: These say how far a task is, not how well it does.
COUNTERS: Final = frozenset(
    {"step", TOTAL_STEPS, "epoch", "examples", "seconds", "time", "timestamp", "wall_time"}
)


def says_how_good(name: str) -> bool:
    """Whether a metric is a loss, an accuracy, a reward or the like.

    >>> says_how_good("val_loss"), says_how_good("train/acc"), says_how_good("mean_reward")
    (True, True, True)
    >>> says_how_good("seed"), says_how_good("accelerators")
    (False, False)
    """
    return _SAYS_HOW_GOOD.search(name) is not None


def in_order(names: Iterable[str]) -> list[str]:
    """How far it is, how good it is, all else, what is only set; else as they come.

    >>> in_order(["seed", "lr", "loss", "step", "val_acc"])
    ['step', 'loss', 'val_acc', 'seed', 'lr']
    """

    def rank(name: str) -> int:
        if name in _HOW_FAR:
            return _HOW_FAR.index(name)
        return 4 if name in _IS_SET else 2 if says_how_good(name) else 3

    return sorted(names, key=rank)


def panels(names: Iterable[str], most: int = 8) -> dict[str, list[str]]:
    """Names of metrics by the group that they are shown in: what is seen at once is that of no name.

    Few are all seen. Of many those are that say how good it is, and the rest goes by what stands before the
    last ``/``, whatever its numbers.

    Args:
        names: of all.
        most: so many are few.

    >>> panels(["lr", "loss"])
    {'': ['loss', 'lr']}
    >>> panels(["net_0/grad", "net_1/grad", "val/loss", "lr"], most=3)
    {'': ['val/loss'], 'net_*': ['net_0/grad', 'net_1/grad'], 'other': ['lr']}
    """
    ordered = [name for name in in_order(names) if name not in _HOW_FAR]
    if len(ordered) <= most:
        return {"": ordered} if ordered else {}
    found: dict[str, list[str]] = {}
    for name in ordered:
        if says_how_good(name):
            found.setdefault("", []).append(name)
        else:
            group = re.sub(r"\d+", "*", name.rpartition("/")[0]) or "other"
            found.setdefault(group, []).append(name)
    if "" not in found:
        found = {"": ordered[:most], **panels(ordered[most:], 0)}
    return found
