"""Runs that are removed: marked first, so that they are shown no more, then what they have left goes.

A run of which something is needed is *trimmed*: its record stays with what is needed, the rest goes. The row
of one that is removed stays, for bills, for `score` and so that its name is never given again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db import audit
from trainmaster.db import tables as t
from trainmaster.db.cluster_rows import ENDED
from trainmaster.db.database import Database
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.leases import is_alive
from trainmaster.db.queries import RunFilter
from trainmaster.db.registry import may_go_on
from trainmaster.db.retry_policy import Try
from trainmaster.db.run_rows import run_row
from trainmaster.spec.errors import NotFoundError, TrainmasterError
from trainmaster.spec.states import WHOLE, State

if TYPE_CHECKING:
    from trainmaster.spec import Recipe

#: What ended without success so long ago is not gone on with any more.
RESUMED_WITHIN_S: Final = 30 * 86_400.0
#: So many rows of one transaction: others wait for it.
_AT_ONCE: Final = 5000
_OPEN_APP: Final = t.app.c.state != State.DONE
#: So many of one transaction: others wait for it.
_MOST_AT_ONCE: Final = 1000
#: Any number: that of nothing else of ours.
_LOCK: Final = 0x7A11_0001

#: Of each kind its rows' key, and since when they are old.
_AGES: Final[dict[str, tuple[sa.Column[Any], sa.Column[Any]]]] = {
    "notices": (t.notice.c.id, t.notice.c.done_at),
    "quotes": (t.quote_request.c.id, t.quote_request.c.ended_at),
    "sessions": (t.web_session.c.digest, t.web_session.c.expires_at),
    "device_logins": (t.device_login.c.digest, t.device_login.c.expires_at),
    "sign_ins": (t.sign_in.c.digest, t.sign_in.c.expires_at),
    "login_attempts": (t.login_attempt.c.id, t.login_attempt.c.at),
    "starts": (t.workflow_firing.c.id, t.workflow_firing.c.at),
    "invites": (t.invite.c.digest, t.invite.c.expires_at),
}
KINDS: Final = (*_AGES, "sealed", "audit")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something stays.

    Attributes:
        why: in words.
        hint: what to do about it.
        by: the run that needs it; empty if it is none.
    """

    why: str
    hint: str
    by: str = ""


#: What a team hears of another one.
_OF_OTHERS: Final = Reason("a recipe of another team names it", "Ask who looks after the server.")


@dataclass(frozen=True, slots=True)
class Needed:
    """What of a run is needed.

    Attributes:
        whole: why all of it stays.
        models: URIs of its models that stay, and why.
        record: why its record stays.
    """

    whole: tuple[Reason, ...] = ()
    models: dict[str, Reason] = field(default_factory=dict)
    record: tuple[Reason, ...] = ()

    @property
    def is_trimmed(self) -> bool:
        """Whether it is not removed but trimmed."""
        return bool(self.models or self.record)


def needed(database: Database, run: str, record: Sequence[Reason] = ()) -> Needed:
    """What of a run is needed now.

    Args:
        database: the database.
        run: its id.
        record: why its record is needed, beside what the database knows.

    Raises:
        NotFoundError: there is no such run.
    """
    now = database.clock_s()
    return database.write(lambda connection, _: _needed(connection, run, record, now))


def named_in(database: Database, run: str) -> list[tuple[Reason, str]]:
    """Recipes of runs that may go on, and of workflows, that name a run, and what to say of each.

    Raises:
        NotFoundError: there is no such run.
    """
    now = database.clock_s()
    return database.write(lambda connection, _: _named(connection, run_row(connection, run), now, None))


def recipe_in(text: str) -> Recipe | None:
    """The recipe of a run, or of a workflow's request, as `named_in` gives it; None if it cannot be read."""
    from trainmaster.spec import Recipe

    try:
        found = json.loads(text)
        return Recipe.from_text(found["recipe"]) if "recipe" in found else Recipe.model_validate_json(text)
    except (ValueError, TypeError, TrainmasterError):
        return None


def name_of(row: Mapping[Any, Any]) -> str:
    """What people call a run instead of its id; empty if that is nothing."""
    return str(json.loads(row["labels"] or "{}").get("name", ""))


def mark(database: Database, run: str, by: str, record: Sequence[Reason] = ()) -> Needed:
    """Take a run away from all who look, or what it does not need, unless all of it is needed: what is.

    What goes cannot be registered, served or gone on with from then on.

    Args:
        database: the database.
        run: its id.
        by: who has it removed.
        record: as of `needed`.

    Raises:
        NotFoundError: there is no such run.
    """
    now = database.clock_s()

    def write(connection: Connection, this: Try) -> Needed:
        # What registers a model of it, or begins to drive it, waits for this or is waited for.
        held = sa.select(t.run.c.removed_at).where(t.run.c.id == run)
        row = connection.execute(held.with_for_update()).first()
        if this.again and row is not None and row.removed_at is not None:
            return Needed()
        found = _needed(connection, run, record, now)
        if found.whole:
            return found
        gone = t.task.c.model_uri.not_in(list(found.models))
        unneeded = t.task.update().where(t.task.c.experiment_id.in_(_experiments(run)), gone)
        connection.execute(unneeded.values(model_uri=None))
        kept = t.task.update().where(t.task.c.experiment_id.in_(_experiments(run)))
        connection.execute(kept.where(t.task.c.kept_model.is_not(None)).values(kept_model=None))
        uris = list(found.models)
        connection.execute(
            t.removed_model.delete().where(
                t.removed_model.c.run_id == run, t.removed_model.c.uri.not_in(uris)
            )
        )
        values: dict[str, Any] = {"lease_token": t.run.c.lease_token + 1, "lease_owner": None}
        values["trimmed_at" if found.is_trimmed else "removed_at"] = now
        connection.execute(t.run.update().where(t.run.c.id == run).values(values))
        if found.is_trimmed:
            what = f"{by} removed its logs, output, checkpoints and the models that nothing needs"
            insert_events(connection, [event_row(run, now, "note", message=what)])
        return found

    return database.write(write)


def require_whole(connection: Connection, runs: Collection[str]) -> None:
    """Refuse runs that are not there any more, or only their record: what removes them waits for this.

    Raises:
        NotFoundError: one is not.
    """
    for run in runs:
        here = (t.run.c.id == run, t.run.c.removed_at.is_(None), t.run.c.trimmed_at.is_(None))
        if connection.execute(sa.select(t.run.c.id).where(*here).with_for_update(read=True)).first() is None:
            raise NotFoundError(f"{run} was removed", "`trainmaster status` lists the runs.")


def half_removed(database: Database) -> Sequence[RowMapping]:
    """Runs that are shown no more and of which something may be left: their rows."""
    gone = (t.run.c.removed_at.is_not(None), t.run.c.code_path != "")
    return database.read(sa.select(t.run).where(*gone).order_by(t.run.c.removed_at))


def trimmed(database: Database, since: float = 0.0) -> Sequence[RowMapping]:
    """Runs that were trimmed since a time, and not resumed after that."""
    there = (t.run.c.trimmed_at > since, t.run.c.removed_at.is_(None))
    return database.read(sa.select(t.run).where(*there))


def removed_of(database: Database, runs: Collection[str]) -> dict[str, str | None]:
    """Which of these runs were removed, and of which team each was."""
    found: dict[str, str | None] = {}
    names = list(runs)
    for first in range(0, len(names), 500):  # databases limit the number of values
        some = t.run.c.id.in_(names[first : first + 500])
        query = sa.select(t.run.c.id, t.run.c.team).where(some, t.run.c.removed_at.is_not(None))
        found |= {row["id"]: row["team"] for row in database.read(query)}
    return found


def code_paths(database: Database) -> list[tuple[str, str]]:
    """Runs that were not removed, and where the snapshot of their code is."""
    query = sa.select(t.run.c.id, t.run.c.code_path).where(t.run.c.removed_at.is_(None))
    return [(row["id"], row["code_path"]) for row in database.read(query)]


def teams(database: Database, which: RunFilter) -> dict[str, str | None]:
    """The team of each run."""
    rows = database.read(sa.select(t.run.c.id, t.run.c.team).where(which.condition()))
    return {row["id"]: row["team"] for row in rows}


def settled(database: Database, which: RunFilter) -> Iterator[RowMapping]:
    """Rows of runs that are over and that no process drives."""
    now = database.clock_s()
    for run in database.read(sa.select(t.run.c.id).where(t.run.c.state == State.DONE, which.condition())):
        row = database.run_row(run["id"])
        if not _going_on(row, now):
            yield row


def open_rows(database: Database) -> Sequence[RowMapping]:
    """Rows of runs that are not over."""
    return database.read(sa.select(t.run).where(t.run.c.state != State.DONE, t.run.c.removed_at.is_(None)))


def whole_tasks(database: Database, run: str) -> set[tuple[str, str]]:
    """Experiment and number of the tasks of a run that have succeeded and whose model is published."""
    query = sa.select(t.experiment.c.name, t.task.c.number).join(t.experiment)
    good = (t.task.c.reason.in_(WHOLE), t.task.c.model_uri.is_not(None))
    return {
        (row["name"], str(row["number"]))
        for row in database.read(query.where(t.experiment.c.run_id == run, *good))
    }


def ended_before(
    database: Database, before: float, which: RunFilter, *, untrimmed: bool = False
) -> list[str]:
    """Ids of runs that ended before a time, the oldest first; ``untrimmed``: that are whole."""
    over = [t.run.c.state == State.DONE, t.run.c.ended_at < before, which.condition()]
    over += [t.run.c.trimmed_at.is_(None)] if untrimmed else []
    return [row["id"] for row in database.read(sa.select(t.run.c.id).where(*over).order_by(t.run.c.ended_at))]


def model_uris(database: Database, run: str) -> set[str]:
    """Where models are that something knows as the run's: itself, the registry, or what removes them."""
    of_tasks = sa.select(t.task.c.model_uri).join(t.experiment).where(t.experiment.c.run_id == run)
    found: set[str] = set()
    for query in (
        of_tasks.where(t.task.c.model_uri.is_not(None)),
        sa.select(t.model_version.c.uri.label("model_uri")).where(t.model_version.c.run_id == run),
        sa.select(t.removed_model.c.uri.label("model_uri")).where(t.removed_model.c.run_id == run),
    ):
        found.update(row["model_uri"] for row in database.read(query))
    return found


def empty(database: Database, run: str) -> None:
    """Remove the rows of a run that was marked and whose files are gone; may be killed and repeated."""
    for key, which in (
        (t.outbox.c.id, t.outbox.c.run_id == run),
        (t.event.c.id, t.event.c.run_id == run),
        (t.attempt.c.id, t.attempt.c.experiment_id.in_(_experiments(run))),
        (t.task.c.id, t.task.c.experiment_id.in_(_experiments(run))),
        (t.run_file.c.id, t.run_file.c.run_id == run),
    ):
        remove = key.table.delete().where(key.in_(sa.select(key).where(which).limit(_AT_ONCE)))
        while database.write(partial(_count, remove)):
            pass
    endpoints = sa.select(t.endpoint.c.id).where(t.endpoint.c.run_id == run)
    replicas = sa.select(t.replica.c.id).where(t.replica.c.endpoint_id.in_(endpoints))
    query = sa.select(t.run.c.recipe).where(t.run.c.id == run)

    def write(connection: Connection, _: Try) -> None:
        connection.execute(t.replica_load.delete().where(t.replica_load.c.replica_id.in_(replicas)))
        connection.execute(t.replica.delete().where(t.replica.c.endpoint_id.in_(endpoints)))
        tables = (t.endpoint, t.run_private, t.run_fact, t.run_model, t.removed_model, t.sink_cursor, t.sink)
        for table in tables:
            connection.execute(table.delete().where(table.c.run_id == run))
        left = _for_score(connection.execute(query).scalar_one())
        empty_row = {
            "recipe": left,
            "recipe_path": "",
            "message": "",
            "note": "",
            "notify": None,
            "code_path": "",
        }
        connection.execute(t.run.update().where(t.run.c.id == run).values(empty_row))

    database.write(write)


def _count(remove: sa.Delete, connection: Connection, _: Try) -> int:
    return connection.execute(remove).rowcount


def _for_score(recipe: str) -> str:
    """What `score` needs of a recipe: the shape of its experiments."""
    try:
        stored = json.loads(recipe).get("experiments", {})
        shapes = {name: {"distributed": found.get("distributed")} for name, found in stored.items()}
    except (ValueError, AttributeError):
        shapes = {}
    return json.dumps({"experiments": shapes})


def _experiments(run: str) -> sa.Select[Any]:
    return sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run)


# --- what needs it --------------------------------------------------------------------------------


def _needed(connection: Connection, run: str, record: Sequence[Reason], now: float) -> Needed:
    row = run_row(connection, run)
    named = [why for why, _ in _named(connection, row, now)]
    whole = [*_going_on(row, now), *_used(connection, run), *named]
    return Needed(tuple(whole), _models(connection, run, now), tuple(record))


def _going_on(row: RowMapping, now: float) -> list[Reason]:
    run = row["id"]
    if row["state"] != State.DONE:
        return [Reason("it is not over", f"`trainmaster cancel {run}` ends it.")]
    if row["away"] is not None or is_alive(row["lease_owner"], row["lease_expires_at"], now):
        return [Reason("its driver has not let go of it yet", "Try again in a moment.")]
    return []


def _used(connection: Connection, run: str) -> list[Reason]:
    """Machines, services and apps of it."""
    clusters = sa.select(t.cluster.c.id).where(t.cluster.c.run_id == run, t.cluster.c.state != ENDED)
    services = sa.select(t.endpoint.c.name).where(t.endpoint.c.run_id == run, t.endpoint.c.ended_at.is_(None))
    apps = sa.select(t.app.c.id, t.app.c.kind).where(
        _OPEN_APP, (t.app.c.run_id == run) | t.app.c.runs.contains(f'"{run}"', autoescape=True)
    )
    return [
        *(
            Reason(
                f"machines of it are rented: {name}", f"`trainmaster clusters end {name}` gives them back."
            )
            for name in connection.execute(clusters).scalars()
        ),
        *(
            Reason(f"its service {name} answers", f"`trainmaster services end {name}` ends it.")
            for name in connection.execute(services).scalars()
        ),
        *(
            Reason(f"a {each.kind} shows it: {each.id}", f"`trainmaster apps end {each.id}` ends it.")
            for each in connection.execute(apps)
        ),
    ]


def _named(
    connection: Connection, row: RowMapping, now: float, most: int | None = 10
) -> list[tuple[Reason, str]]:
    """Runs that may go on, and workflows, whose recipes name it, with these; of another team unnamed.

    Workflows may have its name instead of its id; in recipes of runs that was settled.
    """
    run, team = row["id"], row["team"]
    runs = sa.select(t.run.c.id, t.run.c.team, t.run.c.recipe).where(
        t.run.c.id != run,
        may_go_on(now - RESUMED_WITHIN_S),
        t.run.c.recipe.contains(run, autoescape=True),
    )
    flows = sa.select(t.workflow.c.name, t.workflow.c.team, t.workflow.c.request)
    flows = flows.where(t.workflow.c.request.contains(run, autoescape=True))
    found = []
    for each in connection.execute(runs.limit(most)):
        hint = f"Remove that run first: `trainmaster rm {each.id}`."
        why = Reason(f"the recipe of {each.id} names it", hint, each.id) if each.team == team else _OF_OTHERS
        found.append((why, each.recipe))
    for each in connection.execute(flows.limit(most)):
        hint = f"`trainmaster workflows rm {each.name}` removes that."
        why = Reason(f"workflow {each.name} names it", hint) if each.team == (team or "") else _OF_OTHERS
        found.append((why, each.request))
    if name := name_of(row):
        of_team = (t.workflow.c.team == (team or ""), t.workflow.c.request.contains(name, autoescape=True))
        query = sa.select(t.workflow.c.name, t.workflow.c.request).where(*of_team)
        for flow in connection.execute(query.where(~t.workflow.c.request.contains(run, autoescape=True))):
            recipe = recipe_in(flow.request)
            if recipe is not None and name in recipe.earlier_runs:
                hint = f"`trainmaster workflows rm {flow.name}` removes that."
                found.append((Reason(f"workflow {flow.name} names it, as {name}", hint), flow.request))
    return found


def _models(connection: Connection, run: str, now: float) -> dict[str, Reason]:
    """Models of it that are needed."""
    found: dict[str, Reason] = {}
    version, alias = t.model_version.c, t.model_alias.c
    same = (alias.team == version.team, alias.name == version.name, alias.version == version.version)
    versions = sa.select(version.uri, version.name, version.version, alias.alias).select_from(
        t.model_version.outerjoin(t.model_alias, sa.and_(*same))
    )
    names: dict[str, list[str]] = {}
    rows = versions.where(version.run_id == run).order_by(version.name, version.version, alias.alias)
    for row in connection.execute(rows):
        of_it = names.setdefault(row.uri, [])
        for name in (f"{row.name}@{row.version}", row.alias and f"{row.name}@{row.alias}"):
            if name and name not in of_it:
                of_it.append(name)
    for uri, of_it in names.items():
        why = f"its model is {', '.join(of_it)}"
        found[uri] = Reason(why, f"`trainmaster models rm {of_it[0]}` takes it out of the registry.")
    tasks = sa.select(t.task.c.model_uri).where(
        t.task.c.experiment_id.in_(_experiments(run)), t.task.c.model_uri.is_not(None)
    )
    removed = sa.select(t.removed_model.c.uri).where(t.removed_model.c.run_id == run)
    ours = tasks.union(removed)
    endpoint, replica = t.endpoint.c, t.replica.c
    serving = (
        sa.select(endpoint.model_uri, endpoint.name).where(
            endpoint.ended_at.is_(None), endpoint.model_uri.in_(ours)
        ),
        sa.select(replica.model_uri, endpoint.name)
        .join(t.endpoint, endpoint.id == replica.endpoint_id)
        .where(replica.state != "GONE", replica.model_uri.in_(ours)),
    )
    for query in serving:
        for uri, name in connection.execute(query):
            found.setdefault(uri, Reason(f"service {name} answers with its model", "End that one first."))
    gone, uses = t.removed_model.c, t.run_model.c
    starting = (
        sa.select(gone.uri, uses.run_id)
        .join(
            t.run_model,
            (uses.team == gone.team) & (uses.name == gone.name) & (uses.version == gone.version),
        )
        .join(t.run, t.run.c.id == uses.run_id)
        .where(gone.run_id == run, may_go_on(now - RESUMED_WITHIN_S), uses.run_id != run)
    )
    for uri, name in connection.execute(starting):
        found.setdefault(
            uri, Reason(f"{name} starts from its model", f"`trainmaster rm {name}` first.", name)
        )
    return found


def remove_older(database: Database, kind: str, before: float) -> int:
    """Remove rows of a kind; how many. None while another server removes some.

    Args:
        database: the database.
        kind: of `KINDS`; ``sealed`` is what is private of runs that have ended without success, by their end.
        before: Unix seconds.

    Raises:
        StoreError: the database cannot be used.
    """
    now = database.clock_s()
    if kind == "audit":
        remove: Callable[[Connection], int] = partial(audit.prune, before=before, now=now)
    elif kind == "sealed":
        over = (t.run.c.state == State.DONE) & (t.run.c.ended_at < before)
        undriven = t.run.c.lease_owner.is_(None) | (t.run.c.lease_expires_at < before)
        key = t.run_private.c.run_id
        old = sa.select(key).join(t.run, t.run.c.id == key).where(over, undriven).distinct()
        remove = partial(_remove, key=key, old=old)
    else:
        key, since = _AGES[kind]
        remove = partial(_remove, key=key, old=sa.select(key).where(since < before))

    def write(connection: Connection, _: object) -> int:
        if connection.dialect.name != "sqlite":
            alone = sa.select(sa.func.pg_try_advisory_xact_lock(_LOCK))
            if not connection.execute(alone).scalar():
                return 0
        return remove(connection)

    removed = 0
    while found := database.write(write, patient=False):
        removed += found
    return removed


def _remove(connection: Connection, key: sa.Column[Any], old: sa.Select[Any]) -> int:
    return connection.execute(key.table.delete().where(key.in_(old.limit(_MOST_AT_ONCE)))).rowcount


def named_code(database: Database) -> set[str]:
    """Digests of the code of all runs that any server can go on with."""
    query = sa.select(t.run.c.code_path).where(t.run.c.can_move, t.run.c.removed_at.is_(None))
    rows = database.read(query.distinct())
    return {row["code_path"].rpartition("/")[2] for row in rows}
