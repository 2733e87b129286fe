"""What jobs before say about the next one: shipped priors, moved and narrowed by history (empirical Bayes).

Every job's posterior is read in the coordinates in which its prior is a standard normal; there the jobs can
be compared, however long their steps are. A parameter that a job says nothing about stays at its prior.
Jobs differ from each other, so even many of them leave a good part of the shipped width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats

#: How much the same parameter differs between jobs on the same machines, in units of the shipped spread.
BETWEEN: Final = 0.6
#: A job that leaves more than this of a parameter's prior spread says nothing about it.
_SILENT: Final = 0.9
#: Of more jobs only the newest count.
MOST_JOBS: Final = 12


@dataclass(frozen=True)
class Experience:
    """A prior's own coordinates, as jobs before have them: (P,) each.

    Attributes:
        shift: mean; 0 where nothing was learnt.
        width: standard deviation; 1 where nothing was learnt, never less than ``BETWEEN``.
        jobs: how many it rests on.
    """

    shift: Floats
    width: Floats
    jobs: int

    @classmethod
    def of(cls, jobs: Sequence[tuple[Floats, Floats]]) -> Experience | None:
        """Learn from the `StepTimeModel.coordinates` of other jobs, newest first; None without any."""
        if not jobs:
            return None
        total = np.ones_like(jobs[0][0])
        pull = np.zeros_like(total)
        for mean, spread in jobs[:MOST_JOBS]:
            says = spread < _SILENT
            weight = np.where(says, 1 / (spread**2 + BETWEEN**2), 0.0)
            total, pull = total + weight, pull + weight * mean
        width = np.where(total > 1, np.minimum(np.hypot(BETWEEN, 1 / np.sqrt(total)), 1.0), 1.0)
        return cls(pull / total, width, min(len(jobs), MOST_JOBS))
