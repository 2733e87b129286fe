"""What the parameters of one task of a sweep may have to do with how long it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainmaster.spec.task_space import TaskSpace

#: Numbers that count no work.
_NO_SIZE: Final = re.compile(
    r"seed|port|rank|local|device|gpu|fold|part|shard|chunk|split|index|idx|number|file|(^|_)id$",
    re.IGNORECASE,
)


def task_numbers(parameters: Mapping[str, bool | int | float | str]) -> dict[str, float]:
    """Of a size, such as a depth or a batch, its logarithm by its name; of a choice 1 by name and value.

    Sizes are whole numbers from 1 on. Rates, such as 0.1, are taken to have nothing to do with it.

    >>> task_numbers({"depth": 1, "act": "relu", "lr": 0.1, "seed": 3})
    {'depth': 0.0, 'act=relu': 1.0}
    """
    found = {}
    for name, value in parameters.items():
        if _NO_SIZE.search(name):
            continue
        if isinstance(value, bool | str):
            found[f"{name}={value}"] = 1.0
        elif isinstance(value, int) and value >= 1:
            found[name] = math.log(value)
    return found


def numbers_of_task(tasks: TaskSpace, number: int) -> dict[str, float] | None:
    """`task_numbers` of one of them; None where its parameters are chosen later, or there is no such."""
    parameters = tasks.parameters(number) if number < len(tasks) else None
    return None if parameters is None else task_numbers(parameters)
