"""The best model of an experiment by what its tasks reported, and what a gate says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.spec.gate import Baseline, Gate, GateResult, as_number, judge
from trainmaster.spec.model_reference import ModelReference
from trainmaster.spec.states import WHOLE

_VERSION, _ALIAS = t.model_version.c, t.model_alias.c


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has left.

    Attributes:
        task: its number.
        uri: of its model; None if it has none.
        metrics: their last values.
    """

    task: int
    uri: str | None
    metrics: Mapping[str, Any]


def results(connection: Connection, run: str, experiment: str, *, models: bool) -> list[TaskResult]:
    """What the tasks of an experiment have left, those with a model, or all that have succeeded."""
    wanted = t.task.c.model_uri.is_not(None) if models else t.task.c.reason.in_(WHOLE)
    rows = connection.execute(
        sa.select(t.task.c.number, t.task.c.model_uri, t.task.c.metrics)
        .join(t.experiment)
        .where(t.experiment.c.run_id == run, t.experiment.c.name == experiment, wanted)
        .order_by(t.task.c.number)
    )
    return [TaskResult(row.number, row.model_uri, json.loads(row.metrics)) for row in rows]


def best_of(found: Sequence[TaskResult], metric: str | None, *, smallest: bool) -> TaskResult | None:
    """The best one; of those that are equally good the first. Without a metric: the only one."""
    if metric is None:
        return found[0] if len(found) == 1 else None
    sign = 1.0 if smallest else -1.0
    known = [(sign * value, at) for at, each in enumerate(found)
             if (value := as_number(each.metrics.get(metric))) is not None]  # fmt: skip
    return found[min(known)[1]] if known else None


def verdict(connection: Connection, run: str, experiment: str, gate: Gate) -> GateResult:
    """What a gate says of an experiment whose tasks have succeeded, by what aliases mean at this moment."""
    found = results(connection, run, experiment, models=True)
    found = found or results(connection, run, experiment, models=False)
    best = best_of(found, gate.metric, smallest=gate.smallest)
    if best is None:  # whatever was reported helps who looks for the missing metric
        best = found[0] if found else TaskResult(0, None, {})
    baseline = _baseline(connection, run, experiment, best.task, gate.requirement.better_than)
    return judge(gate.requirement, best.metrics, baseline)


def _baseline(connection: Connection, run: str, experiment: str, task: int, than: str | None) -> Baseline:
    if than is None:
        return Baseline()
    wanted = ModelReference.parse(than)
    team = connection.execute(sa.select(t.run.c.team).where(t.run.c.id == run)).scalar_one() or ""
    same = (_VERSION.team == _ALIAS.team, _VERSION.name == _ALIAS.name, _VERSION.version == _ALIAS.version)
    row = connection.execute(
        sa.select(_ALIAS.version, _VERSION.run_id, _VERSION.experiment, _VERSION.task, t.task.c.metrics)
        .select_from(
            t.model_alias.join(t.model_version, sa.and_(*same))
            .outerjoin(
                t.experiment,
                (t.experiment.c.run_id == _VERSION.run_id) & (t.experiment.c.name == _VERSION.experiment),
            )
            .outerjoin(
                t.task, (t.task.c.experiment_id == t.experiment.c.id) & (t.task.c.number == _VERSION.task)
            )
        )
        .where(_ALIAS.team == team, _ALIAS.name == wanted.name, _ALIAS.alias == wanted.must_alias)
    ).first()
    if row is None:
        return Baseline()
    is_same = (row.run_id, row.experiment, row.task) == (run, experiment, task)
    return Baseline(row.version, json.loads(row.metrics or "{}"), is_same)
