"""The model registry of each team: a transaction for each thing that is done to it, and what is asked.

Models that were taken out of the registry: which of them are not needed, so that their files may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.db.events import event_row, insert_events, json_column
from trainmaster.db.registry_rows import (
    LISTED,
    AliasMove,
    ModelInUseError,
    NewVersionRow,
    RunModel,
    add_version,
    alias_version,
    move_alias,
)
from trainmaster.db.retry_policy import Try
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import EndReason, State

_R, _V = t.removed_model.c, t.model_version.c
_PAGE: Final = 1000


def note_removed(connection: Connection, version: RowMapping, now: float) -> None:
    """Remember what a version pointed to, in the transaction that takes it out of the registry."""
    row = {key: version[key] for key in ("run_id", "experiment", "task", "uri", "team", "name", "version")}
    same = (_R.run_id == row["run_id"], _R.experiment == row["experiment"], _R.task == row["task"])
    connection.execute(t.removed_model.delete().where(*same))
    connection.execute(t.removed_model.insert().values(**row, removed_at=now))


def removed_before(database: Database, before: float) -> Iterator[RowMapping]:
    """Those that were removed before a time, the oldest first, in pages: many may stay."""
    key = (_R.removed_at, _R.run_id, _R.experiment, _R.task)
    query = sa.select(t.removed_model).where(_R.removed_at < before).order_by(*key).limit(_PAGE)
    page = database.read(query)
    while page:
        yield from page
        last = tuple(page[-1][column.name] for column in key)
        page = database.read(query.where(sa.tuple_(*key) > last))


@transaction
def give_up(connection: Connection, row: RowMapping, before: float, now: float) -> bool:
    """Make sure that a model is not needed, nor will be: its run has it no more, and its files may go.

    What registers it holds the row of its task, as this does: it is a version by then, or gone.

    Args:
        connection: of its transaction.
        row: of `removed_before`.
        before: Unix seconds: what has ended without success since then may still be resumed with it.
        now: Unix seconds.
    """
    run, experiment, number = row["run_id"], row["experiment"], row["task"]
    mine = t.task.c.experiment_id.in_(
        sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run, t.experiment.c.name == experiment)
    )
    task = sa.select(t.task.c.id, t.task.c.model_uri).where(mine, t.task.c.number == number)
    needs = may_go_on(before)
    starts_from = (
        t.run_model.c.team == row["team"],
        t.run_model.c.name == row["name"],
        t.run_model.c.version == row["version"],
    )
    serves = (t.endpoint.c.ended_at.is_(None), t.endpoint.c.model_uri == row["uri"])
    users = (
        sa.select(_V.version).where(_V.run_id == run, _V.experiment == experiment, _V.task == number),
        sa.select(t.run.c.id).where(t.run.c.id == run, needs),
        sa.select(t.run.c.id)
        .join(t.run_model, t.run_model.c.run_id == t.run.c.id)
        .where(*starts_from, needs),
        sa.select(t.endpoint.c.id).where(*serves),
        sa.select(t.replica.c.id).where(t.replica.c.state != "GONE", t.replica.c.model_uri == row["uri"]),
    )
    found = connection.execute(task.with_for_update()).first()
    if any(connection.execute(query.limit(1)).first() is not None for query in users):
        return False
    if found is not None and found.model_uri == row["uri"]:
        connection.execute(t.task.update().where(t.task.c.id == found.id).values(model_uri=None))
        what = f"its model is removed: it was {row['name']}@{row['version']}, which was removed before"
        told = event_row(run, now, "note", message=what, experiment=experiment, task=number)
        insert_events(connection, [told])
    return found is None or found.model_uri in (None, row["uri"])


def forget(database: Database, row: RowMapping) -> None:
    """Its files are gone, or it is needed again."""
    same = (_R.run_id == row["run_id"], _R.experiment == row["experiment"], _R.task == row["task"])
    gone = t.removed_model.delete().where(*same, _R.removed_at == row["removed_at"])
    database.execute(gone)


def may_go_on(before: float) -> sa.ColumnElement[bool]:
    """Runs that go on, or may be gone on with."""
    succeeded = t.run.c.reason == EndReason.SUCCEEDED
    is_gone = succeeded | (t.run.c.ended_at < before) | t.run.c.removed_at.is_not(None)
    is_over = (t.run.c.state == State.DONE) & is_gone
    return sa.not_(sa.func.coalesce(is_over, sa.false()))


_MODEL, _VERSION, _ALIAS, _MOVE = (
    t.registered_model.c,
    t.model_version.c,
    t.model_alias.c,
    t.model_move.c,
)


@transaction
def register(connection: Connection, new: NewVersionRow, alias: str | None, now: float) -> tuple[int, bool]:
    """Make a version, and have an alias mean it: its number, and whether it is new."""
    version, is_new = add_version(connection, new, now)
    if alias is not None:
        present = alias_version(connection, new.team, new.name, alias)
        move_alias(connection, new.team, new.name, AliasMove(alias, version, new.by), now, present)
    return version, is_new


move = transaction(move_alias)


@transaction
def describe(
    connection: Connection, team: str, name: str, description: str | None, tags: Mapping[str, str] | None
) -> bool:
    """Change what is said of a registered model; None leaves it. False if there is none."""
    values: dict[str, Any] = {} if description is None else {"description": description}
    if tags is not None:
        values["tags"] = json_column(dict(tags))
    which = (_MODEL.team == team, _MODEL.name == name)
    return bool(connection.execute(t.registered_model.update().where(*which).values(**values)).rowcount)


def remove_version(database: Database, team: str, name: str, version: int) -> RunModel:
    """Take a version out of the registry: what it pointed to; its number is never given again.

    Its files go some time after (`retention`), unless it is needed by then.

    Raises:
        NotFoundError: there is none.
        ModelInUseError: an alias means it, or a run that is not over starts from it.
    """
    now = database.clock_s()

    def write(connection: Connection, _: Try) -> RunModel:
        which = (_VERSION.team == team, _VERSION.name == name, _VERSION.version == version)
        row = (
            connection.execute(sa.select(t.model_version).where(*which).with_for_update()).mappings().first()
        )
        if row is None:
            raise NotFoundError(f"{name} has no version {version}", LISTED.format(name))
        aliases = sa.select(_ALIAS.alias).where(
            _ALIAS.team == team, _ALIAS.name == name, _ALIAS.version == version
        )
        if names := sorted(connection.execute(aliases).scalars()):
            raise ModelInUseError(
                f"{name}@{version} is {', '.join(f'{name}@{each}' for each in names)}",
                "Have the alias mean another version first: `trainmaster models promote`.",
            )
        using = (
            sa.select(t.run_model.c.run_id)
            .join(t.run, t.run.c.id == t.run_model.c.run_id)
            .where(
                t.run_model.c.team == team,
                t.run_model.c.name == name,
                t.run_model.c.version == version,
                t.run.c.state != State.DONE,
            )
            .limit(1)
        )
        if (run := connection.execute(using).scalar()) is not None:
            raise ModelInUseError(f"{run} starts from {name}@{version}", "Wait for its end, or cancel it.")
        connection.execute(t.model_version.delete().where(*which))
        note_removed(connection, row, now)
        return RunModel(row["run_id"], row["experiment"], row["task"], row["uri"])

    return database.write(write)


# --- reading ----------------------------------------------------------------------------------


def models(database: Database, team: str) -> Sequence[RowMapping]:
    """Registered models by name, with ``versions``: how many there are."""
    count = (
        sa.select(sa.func.count())
        .where(_VERSION.team == _MODEL.team, _VERSION.name == _MODEL.name)
        .scalar_subquery()
        .label("versions")
    )
    return database.read(
        sa.select(t.registered_model, count).where(_MODEL.team == team).order_by(_MODEL.name)
    )


def model(database: Database, team: str, name: str) -> RowMapping | None:
    """One of them."""
    found = database.read(sa.select(t.registered_model).where(_MODEL.team == team, _MODEL.name == name))
    return found[0] if found else None


def versions(database: Database, team: str, name: str, version: int | None = None) -> Sequence[RowMapping]:
    """Versions of a model, the newest first, with ``metrics`` and ``parameters`` of their tasks (JSON)."""
    query = (
        sa.select(t.model_version, t.task.c.metrics, t.task.c.parameters)
        .select_from(
            t.model_version.outerjoin(
                t.experiment,
                (t.experiment.c.run_id == _VERSION.run_id) & (t.experiment.c.name == _VERSION.experiment),
            ).outerjoin(
                t.task, (t.task.c.experiment_id == t.experiment.c.id) & (t.task.c.number == _VERSION.task)
            )
        )
        .where(_VERSION.team == team, _VERSION.name == name)
        .order_by(_VERSION.version.desc())
    )
    return database.read(query if version is None else query.where(_VERSION.version == version))


def aliases(database: Database, team: str, name: str | None = None) -> Sequence[RowMapping]:
    """Aliases of a model, or of all of a team's."""
    query = sa.select(t.model_alias).where(_ALIAS.team == team).order_by(_ALIAS.name, _ALIAS.alias)
    return database.read(query if name is None else query.where(_ALIAS.name == name))


def moves(
    database: Database, team: str, name: str, alias: str | None = None, limit: int = 100
) -> Sequence[RowMapping]:
    """Who moved the aliases of a model, the newest move first."""
    query = sa.select(t.model_move).where(_MOVE.team == team, _MOVE.name == name)
    query = query.order_by(_MOVE.id.desc()).limit(limit)
    return database.read(query if alias is None else query.where(_MOVE.alias == alias))


def users(database: Database, team: str, name: str) -> Sequence[RowMapping]:
    """Runs that started from versions of a model: ``run_id``, ``experiment``, ``data``, ``version``."""
    c = t.run_model.c
    query = sa.select(c.run_id, c.experiment, c.data, c.version).where(c.team == team, c.name == name)
    return database.read(query.order_by(c.version, c.run_id, c.experiment, c.data).limit(1000))
