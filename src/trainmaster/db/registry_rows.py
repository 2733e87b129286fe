"""Rows of the model registry: versions that point to models of runs, aliases, and who moved them when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db import best_models
from trainmaster.db import tables as t
from trainmaster.db.changes import Note, Promotion
from trainmaster.db.events import json_column
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.topics import MODEL_PROMOTED, NOT_PROMOTED

_MODEL, _VERSION, _ALIAS = t.registered_model.c, t.model_version.c, t.model_alias.c
#: What helps who names a model or version that is not there.
_LEFT: Final = "`trainmaster models` lists those that there are."
LISTED: Final = "`trainmaster models show {}` lists its versions."


class AliasMovedError(UsageError):
    """Somebody else has moved the alias since it was looked at (HTTP 409)."""


class ModelInUseError(UsageError):
    """A version that an alias means, or that a run needs, is not removed (HTTP 409)."""


@dataclass(frozen=True, slots=True)
class RunModel:
    """A model that a run has left.

    Attributes:
        run: its id.
        experiment, task: that left it.
        uri: where it is published.
    """

    run: str
    experiment: str
    task: int
    uri: str


@dataclass(frozen=True, slots=True)
class AliasMove:
    """What an alias is to mean from now on.

    Attributes:
        alias: such as ``production``.
        version: number; None takes the alias away.
        by: who moves it.
        kind: ``promote``, ``rollback``, ``remove`` or ``run``.
        run, experiment: whose recipe asks for it.
    """

    alias: str
    version: int | None
    by: str
    kind: str = "promote"
    run: str | None = None
    experiment: str | None = None


@dataclass(frozen=True, slots=True)
class NewVersionRow:
    """A version to be.

    Attributes:
        team: whose; empty for the owner of the home.
        name: of the registered model, which is made if there is none.
        model: what it points to.
        by: who registers it.
        tags: of the version.
    """

    team: str
    name: str
    model: RunModel
    by: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsedVersion:
    """A version that a run starts from.

    Attributes:
        experiment, data: of the run: where its recipe names it.
        team, name, version: which.
    """

    experiment: str
    data: str
    team: str
    name: str
    version: int


def add_version(connection: Connection, new: NewVersionRow, now: float) -> tuple[int, bool]:
    """Register a model: its number, and whether that is new; the same model of a run has one number."""
    team, name, model = new.team, new.name, new.model
    last = _hold(connection, team, name, now)
    known = connection.execute(
        sa.select(_VERSION.version, _VERSION.tags).where(
            _VERSION.team == team,
            _VERSION.name == name,
            _VERSION.run_id == model.run,
            _VERSION.experiment == model.experiment,
            _VERSION.task == model.task,
        )
    ).first()
    if known is not None:
        if new.tags:
            tags = json_column({**json.loads(known.tags), **new.tags})
            same = (_VERSION.team == team, _VERSION.name == name, _VERSION.version == known.version)
            connection.execute(t.model_version.update().where(*same).values(tags=tags))
        return int(known.version), False
    task = (
        sa.select(t.task.c.model_uri)
        .join(t.experiment)
        .where(
            t.experiment.c.run_id == model.run,
            t.experiment.c.name == model.experiment,
            t.task.c.number == model.task,
        )
    )
    # What removes the run, or its files, holds these rows, too (`removals`, `retention`).
    run = sa.select(t.run.c.removed_at).where(t.run.c.id == model.run).with_for_update(read=True)
    removed = connection.execute(run).scalar() is not None
    found = connection.execute(task.with_for_update(of=t.task)).first()
    if removed or (found is not None and found.model_uri is None):
        raise NotFoundError(f"{model.run}/{model.experiment}/{model.task} has no model any more", _LEFT)
    number = last + 1
    which = (_MODEL.team == team, _MODEL.name == name)
    connection.execute(t.registered_model.update().where(*which).values(last_version=number))
    connection.execute(
        t.model_version.insert().values(
            team=team,
            name=name,
            version=number,
            run_id=model.run,
            experiment=model.experiment,
            task=model.task,
            uri=model.uri,
            tags=json_column(dict(new.tags)),
            created_by=new.by,
            created_at=now,
        )
    )
    return number, True


def _hold(connection: Connection, team: str, name: str, now: float) -> int:
    """Hold a registered model, which is made if there is none: the last number that was given."""
    which = (_MODEL.team == team, _MODEL.name == name)
    if connection.execute(sa.select(_MODEL.name).where(*which)).first() is None:
        try:
            with connection.begin_nested():
                connection.execute(t.registered_model.insert().values(team=team, name=name, created_at=now))
        except sa.exc.IntegrityError:
            pass  # somebody has just made it
    # A transaction that has the row has it until it ends: versions are made one after the other.
    last = connection.execute(sa.select(_MODEL.last_version).where(*which).with_for_update()).scalar_one()
    return int(last)


def move_alias(
    connection: Connection, team: str, name: str, move: AliasMove, now: float, expected: int | None
) -> bool:
    """Have an alias mean a version, if it means what is expected; False if it means that version already.

    Args:
        connection: in a transaction.
        team: whose.
        name: of the registered model.
        move: where to.
        now: Unix seconds.
        expected: the version that it means now; None: there is no such alias.

    Raises:
        AliasMovedError: it means another version.
        NotFoundError: there is no such version.
    """
    which = (_ALIAS.team == team, _ALIAS.name == name, _ALIAS.alias == move.alias)
    whole = sa.select(_MODEL.name).where(_MODEL.team == team, _MODEL.name == name)
    connection.execute(whole.with_for_update())  # aliases of a model move one after the other
    if move.version is not None:
        # A removal of this version waits until we are done, and then sees the alias.
        held = sa.select(_VERSION.version).where(
            _VERSION.team == team, _VERSION.name == name, _VERSION.version == move.version
        )
        if connection.execute(held.with_for_update()).first() is None:
            raise NotFoundError(f"{name} has no version {move.version}", LISTED.format(name))
    values = {"version": move.version, "moved_by": move.by, "moved_at": now}
    found = connection.execute(sa.select(t.model_alias).where(*which).with_for_update()).mappings().first()
    present = None if found is None else int(found["version"])
    if present == move.version:
        return False  # as when the answer to the first try got lost
    if present != expected:
        raise _moved(name, move.alias, found, expected)
    if move.version is None:
        connection.execute(t.model_alias.delete().where(*which))
    elif found is None:
        try:
            with connection.begin_nested():
                connection.execute(
                    t.model_alias.insert().values(team=team, name=name, alias=move.alias, **values)
                )
        except sa.exc.IntegrityError:
            found = connection.execute(sa.select(t.model_alias).where(*which)).mappings().first()
            raise _moved(name, move.alias, found, expected) from None
    else:
        connection.execute(t.model_alias.update().where(*which).values(**values))
    connection.execute(
        t.model_move.insert().values(
            team=team, name=name, alias=move.alias, before=present, version=move.version, kind=move.kind,
            moved_by=move.by, moved_at=now, run_id=move.run, experiment=move.experiment,
        )
    )  # fmt: skip
    return True


def _moved(name: str, alias: str, found: RowMapping | None, expected: int | None) -> AliasMovedError:
    is_now = (
        "is gone" if found is None else f"means version {found['version']} since {found['moved_by']} moved it"
    )
    then = "there was none" if expected is None else f"it meant version {expected}"
    return AliasMovedError(f"{name}@{alias} {is_now}; {then} when you looked", "Look again, then decide.")


def promote(connection: Connection, run: str, experiment: str, promotion: Promotion, now: float) -> Note:
    """Make the best model of an experiment the next version, and have the alias mean it; what to tell.

    It is done once for each experiment of a run, whatever is moved by hand afterwards.
    """
    name, alias, target = promotion.name, promotion.alias, f"{promotion.name}@{promotion.alias}"
    by = connection.execute(sa.select(t.run.c.team, t.run.c.submitted_by).where(t.run.c.id == run)).one()
    team = by.team or ""
    found = best_models.results(connection, run, experiment, models=True)
    best = best_models.best_of(found, promotion.metric, smallest=promotion.smallest)
    if best is None or best.uri is None:
        has = f"{promotion.metric} of no model is known" if found and promotion.metric else "it left no model"
        return Note(f"nothing becomes {target}: {has}", experiment, topic=NOT_PROMOTED)
    done = sa.select(t.model_move.c.id).where(
        t.model_move.c.team == team, t.model_move.c.name == name, t.model_move.c.alias == alias,
        t.model_move.c.run_id == run, t.model_move.c.experiment == experiment,
    )  # fmt: skip
    was_done = connection.execute(done).first() is not None
    if promotion.gate is not None and not was_done:
        # What the gate has looked at may have moved since; it moves no more until we are done.
        _hold(connection, team, name, now)
        verdict = best_models.verdict(connection, run, experiment, promotion.gate)
        if not verdict.holds:
            return Note(f"nothing becomes {target}: {verdict.message}", experiment, topic=NOT_PROMOTED)
    who = by.submitted_by or "owner"
    model = RunModel(run, experiment, best.task, best.uri)
    version, _ = add_version(connection, NewVersionRow(team, name, model, who), now)
    if was_done:
        stays = f"{target} was moved for this run before: version {version} stays as it is"
        return Note(stays, experiment, topic=NOT_PROMOTED)
    present = alias_version(connection, team, name, alias)  # what moves it has the model's row, as we do
    move = AliasMove(alias, version, who, "run", run, experiment)
    move_alias(connection, team, name, move, now, present)
    before = "" if present is None else f", and was version {present}"
    is_now = f"promoted: {target} is version {version}, {run}/{experiment}/{model.task}{before}"
    return Note(is_now, experiment, topic=MODEL_PROMOTED)


def alias_version(connection: Connection, team: str, name: str, alias: str) -> int | None:
    """What an alias means now."""
    which = (_ALIAS.team == team, _ALIAS.name == name, _ALIAS.alias == alias)
    found: int | None = connection.execute(sa.select(_ALIAS.version).where(*which)).scalar()
    return found


def use(connection: Connection, run: str, used: Sequence[UsedVersion]) -> None:
    """Note from which versions a new run starts: they are not removed before it is over.

    Raises:
        NotFoundError: one was removed since it was looked up.
    """
    for each in used:
        which = (_VERSION.team == each.team, _VERSION.name == each.name, _VERSION.version == each.version)
        if connection.execute(sa.select(_VERSION.version).where(*which).with_for_update()).first() is None:
            raise NotFoundError(f"{each.name} has no version {each.version}", LISTED.format(each.name))
        connection.execute(
            t.run_model.insert().values(
                run_id=run, experiment=each.experiment, data=each.data,
                team=each.team, name=each.name, version=each.version,
            )
        )  # fmt: skip
