"""`TaskLengths`: of which experiments of a run it is known how long their tasks train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trainmaster.service.apps.rented_notebook import is_notebook
from trainmaster.service.quotes.history import MeasuredNow
from trainmaster.spec import Recipe

if TYPE_CHECKING:
    from trainmaster.control.loop.run_state import RunState
    from trainmaster.control.measure.progress import TaskProgress


class TaskLengths:
    """The recipe says it, earlier runs have said it, or a script says it while it runs.

    Args:
        recipe: of the run.
        known: what was measured of it.

    Attributes:
        services: experiments that serve, and do not train.
        endless: they end when somebody ends them.
        unknown: how long their tasks take is all that can be known of them.
        stepless: these and `endless`: their steps are not to be counted; as lengths are said it has fewer.
    """

    def __init__(self, recipe: Recipe, known: MeasuredNow) -> None:
        self._recipe, self._known = recipe, known
        self.services = {name for name, each in recipe.experiments.items() if each.serve is not None}
        self.endless = {*recipe.experiments} if is_notebook(recipe) else self.services
        self.unknown = {
            name for name, each in recipe.experiments.items() if not each.builtin_values().get("steps")
        }
        self.stepless = self.unknown | self.endless

    def read(self, name: str) -> bool:
        """Whether earlier runs have said how long an experiment is, and that was not known."""
        return self._known.says_length(self._recipe.experiments[name]) and self._learn(name)

    def said(self, progress: Mapping[tuple[str, int], TaskProgress]) -> list[str]:
        """Experiments whose scripts say it now; such runs that ended earlier are believed more.

        Args:
            progress: of running tasks.
        """
        said = (name for (name, _), found in progress.items() if found.said_steps)
        return [name for name in said if not self._known.ends_early(name) and self._learn(name)]

    def outlived(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress]
    ) -> Iterable[tuple[str, TaskProgress, int]]:
        """Experiments whose length is that of earlier runs, with how far they are, and the steps of those.

        Of many tasks each may have a length of its own, and a target ends one at any step.

        Args:
            run_state: which tasks there are.
            progress: of running ones.
        """
        for (name, _), found in progress.items():
            is_one = run_state.experiments[name].total == 1 and self._recipe.experiments[name].ends_at is None
            if is_one and found.trace is not None and name in self.unknown - self.endless:
                most = self._known.most_steps(name, found.trace.unit)
                if most:
                    yield name, found, most

    def _learn(self, name: str) -> bool:
        is_new = name in self.unknown
        self.unknown.discard(name)
        self.stepless.discard(name)
        return is_new
