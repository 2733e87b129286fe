"""What jobs before say about the next one: priors learnt from measured jobs (expectation maximisation).

Every job's posterior under the present prior says where its parameters are; the prior is then set to where
those of all jobs are, given how long their steps are, and so on. The prior to begin with counts as much as
a number of jobs, so a few move it a little. The shipped numbers of `priors.py` come from the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.posterior import Measured, Posterior, heaviness, thinned
from trainmaster.advisor.model.priors import Prior, priors_of, shipped, shortest_s, traits
from trainmaster.advisor.model.shapes import Columns, Floats, MeasuredContext, Shapes
from trainmaster.dataclass import dataclass, field

#: Of more jobs of a home only the newest count.
MOST_JOBS: Final = 12
#: So many jobs the prior counts for that learning begins with.
PSEUDO_JOBS: Final = 20.0
_ROUNDS: Final = 3
_MOST_ROWS: Final = 14
_PARTICLES: Final = 600
_MOVES: Final = 2
_DRAWS: Final = 128

#: Shapes and seconds per step of one job, of one kind.
Job = tuple[Columns, Floats]


@dataclass(frozen=True)
class Experience:
    """What jobs have shown, by kind; nothing is learnt before it is asked for.

    Attributes:
        known: of each kind, the jobs by name.
        skipped: a job whose own rows do not count; empty for none.
    """

    known: Mapping[int, Mapping[str, Job]]
    skipped: str | None = None
    _learnt: dict[int, EmpiricalPriors] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Sequence[Sequence[Point]]) -> Experience | None:
        """Of measured points of other jobs; None without any."""
        points = [point for job in jobs for point in job]
        names = [str(i) for i, job in enumerate(jobs) for _ in job]
        times = np.array([point.step_time_s for point in points], dtype=float)
        return cls.of_rows(names, Columns.of(points), times) if points else None

    @classmethod
    def of_rows(cls, jobs: Sequence[str], columns: Columns, times: Floats) -> Experience:
        """Of measured rows, each with the name of its job."""
        known: dict[int, dict[str, Job]] = {}
        named = np.array(jobs, dtype=object)
        for name, kind in dict.fromkeys(zip(jobs, columns.kind.tolist(), strict=True)):
            rows = (named == name) & (columns.kind == kind)
            known.setdefault(kind, {})[name] = (columns[rows], times[rows])
        return cls(known)

    @property
    def jobs(self) -> int:
        """How many there are."""
        return len({name for jobs in self.known.values() for name in jobs})

    def without(self, job: str) -> Experience:
        """For that job, which must not learn from itself."""
        return replace(self, skipped=job)

    def priors(self, kind: int) -> tuple[Prior, ...]:
        """Of a job of that kind."""
        jobs = self.known.get(kind, {})
        if not jobs.keys() - {self.skipped}:
            return shipped(kind)
        if kind not in self._learnt:
            self._learnt[kind] = EmpiricalPriors.of(list(jobs.values()), shipped(kind))
        return self._learnt[kind].priors(np.array([name != self.skipped for name in jobs]))


@dataclass(frozen=True)
class EmpiricalPriors:
    """Priors of one kind of job, learnt from J jobs of it (empirical Bayes).

    Attributes:
        start: priors that learning began with, and how many jobs they count for: ``pseudo``.
        at: (J, 4) one, and the job's traits. weight: (J,).
        seen: under each prior six sums over the draws of each job: its share of them; their `heaviness`; with
            that, first and second moments of the parameters; absent terms; cells of the grid.
    """

    start: tuple[Prior, ...]
    pseudo: float
    at: Floats
    weight: Floats
    seen: tuple[tuple[Floats, ...], ...] = ()

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        start: tuple[Prior, ...],
        weight: Floats | None = None,
        rounds: int = _ROUNDS,
        pseudo: float = PSEUDO_JOBS,
    ) -> EmpiricalPriors:
        """Learn from jobs.

        Args:
            jobs: of one kind; of many rows, some at random count.
            start: what was believed before.
            weight: (J,) of the jobs; None is one each.
            rounds: of expectation and maximisation.
            pseudo: how many jobs ``start`` counts for.
        """
        few = [thinned(np.arange(len(times)), _MOST_ROWS) for _, times in jobs]
        jobs = [(columns[some], times[some]) for (columns, times), some in zip(jobs, few, strict=True)]
        at = np.array([[1.0, *traits(columns, shortest_s(columns, times))] for columns, times in jobs])
        found = cls(start, pseudo, at, np.ones(len(jobs)) if weight is None else weight)
        priors = start
        for _ in range(rounds):
            found = replace(found, seen=found._expected(jobs, priors))
            priors = found.priors(np.ones(len(jobs)))
        return found

    def priors(self, counts: Floats) -> tuple[Prior, ...]:
        """What fits the posteriors of the jobs best, (J,) of which count, and the priors to begin with."""
        weight, pseudo, found = self.weight * counts, self.pseudo, []
        for start, (share, light, first, second, absent, grid) in zip(self.start, self.seen, strict=True):
            curvature = (self.at * (weight * light)[:, None]).T @ self.at + pseudo * np.eye(self.at.shape[1])
            rows = np.linalg.solve(curvature, (self.at * weight[:, None]).T @ first + pseudo * start.rows)
            mean = self.at @ rows
            square = weight @ (second - 2 * first * mean + light[:, None] * mean**2)
            amount = float(weight @ share) + pseudo
            spread: Floats = np.sqrt((square + pseudo * start.spread**2) / amount).astype(float)
            scarce = np.where(start.absent > 0, (weight @ absent + pseudo * start.absent) / amount, 0.0)
            cells = ((weight @ grid).reshape(start.grid.shape) + pseudo * start.grid) / amount
            found.append(Prior(rows.astype(float), spread, scarce, cells))
        return tuple(found)

    def _expected(self, jobs: Sequence[Job], priors: tuple[Prior, ...]) -> tuple[tuple[Floats, ...], ...]:
        """What the posteriors of all jobs are under the present priors."""
        found: list[list[tuple[Floats, ...]]] = [[] for _ in priors]
        for job, (at, (columns, times)) in enumerate(zip(self.at, jobs, strict=True)):
            context = MeasuredContext.of(columns)
            own = priors_of(columns, times, context, priors)
            measured = Measured.of(Shapes.of(columns, context), np.log(times), own)
            # each with a seed of its own: the chance of a few draws must not be that of all jobs
            drawn = Posterior.of(measured, job, particles=_PARTICLES, draws=_DRAWS, rounds=_MOVES)
            cell = measured.errors.cell[drawn.hypothesis]
            for i, prior in enumerate(priors):
                rows = drawn.prior == i
                # in units of the job's own prior, which may know its network: what is learnt is of all jobs
                theta = prior.mean(at[1:]) + prior.spread * drawn.standard[rows]
                light = heaviness(drawn.standard[rows])
                cells = np.bincount(cell[rows], minlength=prior.grid.size)
                sums = (
                    rows.sum(),
                    light.sum(),
                    light @ theta,
                    light @ theta**2,
                    drawn.absent[rows].sum(0),
                    cells,
                )
                found[i].append(tuple(np.asarray(each / _DRAWS, dtype=float) for each in sums))
        return tuple(tuple(np.array(each) for each in zip(*one, strict=True)) for one in found)
