"""How long a command asks its script to train, by the names of its options."""

from __future__ import annotations

import re
from typing import Final

from trainmaster.lazy import regex

# Only names that leave no doubt: `--n-steps` of PPO is no length, nor is `--eval-steps`.
_EPOCHS: Final = r"(?:(?:max|num|n|nb|total|train)[-_])*epochs|(?:max|num|n|total)[-_]epoch"
_STEPS: Final = r"(?:(?:max|num|total|train)[-_])*(?:steps|iters|iterations)|(?:max|num)[-_]iter"
_SECTION: Final = r"(?:(?:trainer|training|train|args|config|cfg)\.)*"
_OPTION = regex(
    rf"(?<![\w/.-])(?P<dash>--?)?{_SECTION}(?:(?P<epochs>{_EPOCHS})|{_STEPS})(?(dash)[\s=]+|=)"
    r"""["']?(?:(?P<many>\d{1,12})(?:\.0+)?|\{\{\s*(?P<open>\w+)\s*\}\})(?![\w.])""",
    re.IGNORECASE,
)
#: Values of a recipe that are the same in all of its tasks.
_SETTLED: Final = ("steps", "epochs")


def lengths_asked_for(command: str) -> dict[str, int]:
    """How many ``epochs`` and ``steps`` a command asks its script for.

    What it asks two scripts for in different ways counts for neither.

    >>> lengths_asked_for("python train.py --epochs 14 --eval-steps 100")
    {'epochs': 14}
    >>> lengths_asked_for("python train.py trainer.max_steps=500")
    {'steps': 500}
    >>> lengths_asked_for("python a.py --steps 5; python b.py --steps 6")
    {}

    Args:
        command: with its values in it.
    """
    found: dict[str, set[int]] = {}
    for match in _OPTION.finditer(command):
        if match["many"]:
            found.setdefault("epochs" if match["epochs"] else "steps", set()).add(int(match["many"]))
    return {name: many.pop() for name, many in found.items() if len(many) == 1}


def has_open_length(command: str) -> bool:
    """Whether a parameter says how long a task of it is.

    >>> has_open_length("python train.py --epochs {{size}}"), has_open_length("python train.py --lr {{lr}}")
    (True, False)

    Args:
        command: of the recipe.
    """
    return any(match["open"] not in (None, *_SETTLED) for match in _OPTION.finditer(command))
