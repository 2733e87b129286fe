"""What changes of machines and of sizes rest on, and lines about them.

`ReportedReasons`: why nothing is changed, each reason once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainmaster.control.decide.adapting import Adaptable, change_s
from trainmaster.control.task.gangs import checkpoints_of
from trainmaster.db import Note
from trainmaster.service.quotes.quote_record import cap_usd, run_end_s
from trainmaster.spec.topics import ADAPTED

if TYPE_CHECKING:
    from trainmaster.control.loop.run_state import RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.spec import Recipe

_NO_DIGITS: Final = str.maketrans("", "", "0123456789.")
A = TypeVar("A", bound=Adaptable)


def adaptable(
    kind: type[A],
    recipe: Recipe,
    run_state: RunState,
    task: Task,
    found: TaskProgress,
    costs: ClusterCosts | None,
    changed: Iterable[float | None],
    at: float,
    **more: Any,  # noqa: ANN401
) -> A:
    """A task as things stand.

    Args:
        kind: of what may change.
        recipe: of the run.
        run_state: where the run stands.
        task: of it.
        found: how far it is.
        costs: of the machines of the run; None on this one.
        changed: when it was changed before.
        at: Unix seconds.
        **more: attributes of that kind.
    """
    machine_s, restart_s = change_s(run_state.course.get("phases", {}).get(task.experiment, ()))
    changes = [each for each in changed if each is not None]
    return kind(
        left_s=found.eta_s or 0.0,
        checkpoint_s=None if found.checkpoint_at is None else at - found.checkpoint_at,
        every_s=checkpoints_of(recipe.experiments[task.experiment]).every_s,
        machine_s=machine_s,
        restart_s=restart_s,
        spent_usd=0.0 if costs is None else costs.spent_usd(at),
        most_usd=cap_usd(recipe),
        time=recipe.objective.time,
        cost=recipe.objective.cost,
        end_s=run_end_s(recipe)(1),
        changes=len(changes),
        changed_s=at - max(changes, default=-math.inf),
        **more,
    )


def adapted(task: Task, words: str) -> Note:
    """A line of what was decided of a task's machines or members."""
    return Note(f"{task.experiment}: {words}", task.experiment, topic=ADAPTED)


class ReportedReasons:
    """Of one run.

    Args:
        most: of an attempt so many are told.
        before: experiments, and lines that earlier drivers of the run have told.
    """

    def __init__(self, most: int, before: Iterable[tuple[str, str]] = ()) -> None:
        self._most = most
        self._before = {(name, _reason(line)) for name, line in before}
        self._told: dict[str, list[str]] = {}

    def tell(self, task: Task, attempt: str, words: str) -> list[Note]:
        """Why nothing is changed of a task, if that is to be told; see `is_new`."""
        return [adapted(task, words)] if self.is_new(task.experiment, attempt, words) else []

    def is_new(self, experiment: str, attempt: str, words: str) -> bool:
        """Whether a line is to be told; then it has been.

        >>> told = ReportedReasons(3, [("train", "it is slow: the last 30 s are too short")])
        >>> told.is_new("train", "x/train/0/2", "it is slow: the last 20 s are too short")
        False
        >>> told.is_new("train", "x/train/0/2", "it is slow: there is no checkpoint")
        True

        Args:
            experiment: of the attempt.
            attempt: its id.
            words: whose part after the last colon is the reason; numbers in it do not make it another one.
        """
        told, reason = self._told.setdefault(attempt, []), _reason(words)
        if not words or reason in told or (experiment, reason) in self._before or len(told) >= self._most:
            return False
        told.append(reason)
        return True

    def enough(self, attempt: str) -> None:
        """Of an attempt nothing more is told."""
        self._told.setdefault(attempt, []).extend([""] * self._most)


def _reason(words: str) -> str:
    return words.rpartition(":")[2].translate(_NO_DIGITS)
