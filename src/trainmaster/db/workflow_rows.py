"""Rows of workflows: what starts them, and each start. Rules: `trainmaster.service.workflows`.

A start is a row of its own before its run is there. Its key (workflow, trigger, cause) is unique, and the
run is written in the transaction that makes the row STARTED: so of all servers, whichever is killed when, one
starts one run for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.db.outbox import insert_notice
from trainmaster.db.retry_policy import Try
from trainmaster.spec.states import State

_W, _T, _F = t.workflow.c, t.workflow_trigger.c, t.workflow_firing.c
ENABLED: Final = "ENABLED"
PAUSED: Final = "PAUSED"
#: Of starts.
WAITING: Final = "WAITING"
SKIPPED: Final = "SKIPPED"
REFUSED: Final = "REFUSED"
#: Topic of webhooks of teams.
TOPIC: Final = "workflow.refused"
#: What stands for a trigger where that it may start nothing any more has paused a workflow.
_RIGHT: Final = "its right"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run is to be started.

    Attributes:
        trigger: its key among those of the workflow.
        cause: the version, the time or the id of the webhook, which starts one run only.
        message: what was skipped.
        chain: ids of the workflows that led to it, the first one first.
        refused: why it is not to be; empty if it is.
    """

    trigger: str
    cause: str
    message: str = ""
    chain: tuple[str, ...] = ()
    refused: str = ""


@transaction
def put(
    connection: Connection,
    row: Mapping[str, Any],
    triggers: Sequence[Mapping[str, Any]],
    *,
    keeps_secret: bool = True,
) -> str:
    """Keep a workflow, or its next revision; its id.

    Args:
        connection: of its transaction.
        row: with an id that counts if it is new; ``secret`` only then, or if it has none yet.
        triggers: rows without the id; what is kept of those that stay is what they have seen.
        keeps_secret: False: one that it has is replaced by that of the row.
    """
    which = (_W.team == row["team"], _W.name == row["name"])
    found = connection.execute(sa.select(t.workflow).where(*which).with_for_update()).mappings().first()
    if found is None:
        connection.execute(t.workflow.insert().values(**row))
        workflow = str(row["id"])
    else:
        workflow = found["id"]
        kept = {"id", "created_at", "revision", *(["secret"] if found["secret"] and keeps_secret else [])}
        values = {key: value for key, value in row.items() if key not in kept}
        changed = found["request"] != row["request"] or found["concurrency"] != row["concurrency"]
        connection.execute(
            t.workflow.update().where(_W.id == workflow).values(**values, revision=_W.revision + int(changed))
        )
    known = {each.key for each in connection.execute(sa.select(_T.key).where(_T.workflow_id == workflow))}
    wanted = {each["key"] for each in triggers}
    gone = (_T.workflow_id == workflow, _T.key.in_(known - wanted))
    connection.execute(t.workflow_trigger.delete().where(*gone))
    for each in triggers:
        if each["key"] not in known:
            connection.execute(t.workflow_trigger.insert().values(workflow_id=workflow, **each))
            continue
        values = {key: each[key] for key in ("ordinal", "data")}
        same = (_T.workflow_id == workflow, _T.key == each["key"])
        connection.execute(t.workflow_trigger.update().where(*same).values(**values))
    return workflow


def find(database: Database, workflow: str) -> RowMapping | None:
    """A workflow by its id."""
    return database.first(sa.select(t.workflow).where(_W.id == workflow))


def named(database: Database, team: str, name: str) -> RowMapping | None:
    """A workflow of a team by its name, with ``good_until``: when the token ends that has registered it."""
    return database.first(_with_token().where(_W.team == team, _W.name == name))


def of_teams(database: Database, teams: Collection[str] | None) -> Sequence[RowMapping]:
    """Those of teams, or all (None), by team and name; each as of `named`."""
    query = _with_token().order_by(_W.team, _W.name)
    return database.read(query if teams is None else query.where(_W.team.in_(teams)))


def _with_token() -> sa.Select[Any]:
    token = t.token.c
    ends = sa.func.coalesce(token.revoked_at, token.expires_at)
    query = sa.select(t.workflow, ends.label("good_until"))
    return query.select_from(t.workflow.outerjoin(t.token, token.name == _W.token))


def ending(
    database: Database, teams: Collection[str] | None, now: float, before: float
) -> Sequence[RowMapping]:
    """Those that are not paused, and whose token ends before then: asked for at one look."""
    soon = t.token.c.expires_at.between(now, before) & (_W.state == ENABLED)
    query = _with_token().where(soon)
    query = query if teams is None else query.where(_W.team.in_(teams))
    return database.read(query.order_by(_W.team, _W.name))


def enabled(database: Database) -> Sequence[RowMapping]:
    """Those that are not paused: asked often, so without what their starts submit."""
    columns = (_W.id, _W.team, _W.name, _W.registered_by, _W.account, _W.token)
    return database.read(sa.select(*columns).where(_W.state == ENABLED))


def without_right(database: Database, teams: Collection[str] | None) -> Sequence[RowMapping]:
    """``name``, ``team`` and ``message`` of those that are paused as they may start nothing any more."""
    query = sa.select(_W.name, _W.team, _F.message).join_from(t.workflow, t.workflow_firing)
    # It was not resumed, nor paused by hand, since then.
    query = query.where(_W.state == PAUSED, _F.trigger == _RIGHT, _F.at == _W.changed_at)
    query = query if teams is None else query.where(_W.team.in_(teams))
    return database.read(query.order_by(_W.team, _W.name))


def names(database: Database) -> dict[str, str]:
    """Names of all workflows by their ids."""
    return {row["id"]: row["name"] for row in database.read(sa.select(_W.id, _W.name))}


def triggers(database: Database, workflows: Collection[str]) -> dict[str, list[RowMapping]]:
    """What starts workflows, by their ids, in the order of their recipes."""
    query = sa.select(t.workflow_trigger).where(_T.workflow_id.in_(workflows)).order_by(_T.ordinal)
    found: dict[str, list[RowMapping]] = {workflow: [] for workflow in workflows}
    for row in database.read(query):
        found[row["workflow_id"]].append(row)
    return found


@transaction
def change_state(connection: Connection, workflow: str, state: str, now: float) -> None:
    """Pause it: what waits is skipped; or go on."""
    if state == PAUSED:
        pause(connection, workflow, now)
        return
    values = {"state": state, "changed_at": now}
    connection.execute(t.workflow.update().where(_W.id == workflow).values(**values))


def refuse_in(connection: Connection, workflow: str, why: str, now: float) -> None:
    """Pause one that may start nothing any more, unless it is paused.

    Its history and the team's webhooks say why.
    """
    query = sa.select(t.workflow).where(_W.id == workflow, _W.state == ENABLED).with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:
        return
    pause(connection, workflow, now)
    firing = {
        "workflow_id": workflow,
        "trigger": _RIGHT,
        "cause": f"{now:.6f}",
        "at": now,
        "state": REFUSED,
        "message": why,
        "due_at": now,
    }
    connection.execute(t.workflow_firing.insert().values(**firing))
    _tell(connection, row, why, now)


refuse = transaction(refuse_in)


def pause(connection: Connection, workflow: str, now: float) -> None:
    """Pause it in a transaction: what waits is skipped."""
    values = {"state": PAUSED, "changed_at": now}
    connection.execute(t.workflow.update().where(_W.id == workflow).values(**values))
    waits = (_F.workflow_id == workflow, _F.state == WAITING)
    skipped = {"state": SKIPPED, "message": "the workflow was paused"}
    connection.execute(t.workflow_firing.update().where(*waits).values(**skipped))


def change_secret(database: Database, workflow: str, secret: bytes) -> None:
    """Another secret of its webhook."""
    changed = t.workflow.update().where(_W.id == workflow).values(secret=secret)
    database.execute(changed)


def pass_over(database: Database, workflow: str, key: str, seen: float) -> None:
    """What came up to now starts nothing."""
    which = (_T.workflow_id == workflow, _T.key == key, _T.seen < seen)
    database.execute(t.workflow_trigger.update().where(*which).values(seen=seen))


def set_back(database: Database, workflow: str, key: str, seen: float, now: float) -> None:
    """What it had seen is still to come, as the clock was wrong: it has seen what came up to now."""
    which = (_T.workflow_id == workflow, _T.key == key, _T.seen == seen)
    database.execute(t.workflow_trigger.update().where(*which).values(seen=now))


@transaction
def remove(connection: Connection, workflow: str) -> None:
    """Forget it, what starts it and its history; its runs stay."""
    # A server that starts a run of it just now has its row, too.
    connection.execute(sa.select(_W.id).where(_W.id == workflow).with_for_update())
    connection.execute(t.workflow_firing.delete().where(_F.workflow_id == workflow))
    connection.execute(t.workflow_trigger.delete().where(_T.workflow_id == workflow))
    connection.execute(t.workflow.delete().where(_W.id == workflow))


# --- starts ---------------------------------------------------------------------------------------------


def fire(
    database: Database, workflow: str, cause: Cause, now: float, seen: tuple[float, float] | None = None
) -> bool:
    """Write down that a run is to be started; False if that was done, or is not to be any more.

    Args:
        database: the database.
        workflow: its id.
        cause: why.
        now: Unix seconds.
        seen: of its trigger: what it must have seen until now, and has seen from now on.
    """

    def write(connection: Connection, this: Try) -> bool:
        query = sa.select(t.workflow).where(_W.id == workflow).with_for_update()
        row = connection.execute(query).mappings().first()
        if row is None or (seen is not None and row["state"] != ENABLED):
            return False
        same = (_F.workflow_id == workflow, _F.trigger == cause.trigger, _F.cause == cause.cause)
        known = connection.execute(sa.select(_F.at).where(*same)).first()
        if known is not None:
            return this.again and bool(known.at == now)  # ours: the first try was written
        if seen is not None:
            which = (_T.workflow_id == workflow, _T.key == cause.trigger, _T.seen == seen[0])
            if not connection.execute(
                t.workflow_trigger.update().where(*which).values(seen=seen[1])
            ).rowcount:
                return False
        firing = {
            "workflow_id": workflow,
            "trigger": cause.trigger,
            "cause": cause.cause,
            "at": now,
            "state": REFUSED if cause.refused else WAITING,
            "message": cause.refused or cause.message,
            "chain": json.dumps(cause.chain),
            "due_at": now,
        }
        connection.execute(t.workflow_firing.insert().values(**firing))
        if cause.refused:
            _tell(connection, row, cause.refused, now)
        return True

    return database.write(write)


def waiting(database: Database) -> Sequence[RowMapping]:
    """All starts that wait, with their workflows, each workflow's oldest first."""
    columns: list[Any] = [
        *t.workflow_firing.c,
        _W.team,
        _W.name,
        _W.request,
        _W.concurrency,
        _W.registered_by,
    ]
    columns += [_W.account, _W.token]
    query = sa.select(*columns).join(t.workflow, _W.id == _F.workflow_id).where(_F.state == WAITING)
    return database.read(query.order_by(_F.workflow_id, _F.id))


def under_way(database: Database, workflows: Collection[str]) -> dict[str, list[str]]:
    """Runs of workflows that are not over."""
    query = sa.select(_F.workflow_id, _F.run_id).join(t.run, t.run.c.id == _F.run_id)
    query = query.where(_F.workflow_id.in_(workflows), t.run.c.state != State.DONE)
    found: dict[str, list[str]] = {}
    for row in database.read(query):
        found.setdefault(row["workflow_id"], []).append(row["run_id"])
    return found


def claim(database: Database, firing: RowMapping, until: float) -> bool:
    """Be the server that starts it until a time; False if another one is."""
    same = (_F.id == firing["id"], _F.state == WAITING, _F.due_at == firing["due_at"])
    claimed = t.workflow_firing.update().where(*same).values(due_at=until, tries=_F.tries + 1)

    def write(connection: Connection, this: Try) -> bool:
        if connection.execute(claimed).rowcount:
            return True
        mine = (_F.id == firing["id"], _F.state == WAITING, _F.due_at == until)
        return this.again and connection.execute(sa.select(_F.id).where(*mine)).first() is not None

    return database.write(write)


def put_off(database: Database, firing: int, until: float, message: str) -> None:
    """Try again to start it later."""
    which = (_F.id == firing, _F.state == WAITING)
    values = {"due_at": until, "message": message}
    database.execute(t.workflow_firing.update().where(*which).values(**values))


@transaction
def end(connection: Connection, firing: int, state: str, message: str, now: float) -> None:
    """It starts no run; of one that is refused the team's webhooks are told."""
    which = (_F.id == firing, _F.state == WAITING)
    values = {"state": state, "message": message}
    ended = connection.execute(t.workflow_firing.update().where(*which).values(**values)).rowcount
    if ended and state == REFUSED:
        query = sa.select(t.workflow).join(t.workflow_firing, _W.id == _F.workflow_id)
        row = connection.execute(query.where(_F.id == firing)).mappings().one()
        _tell(connection, row, message, now)


def history(database: Database, workflow: str, limit: int) -> Sequence[RowMapping]:
    """Its newest starts, with what became of their runs."""
    query = sa.select(t.workflow_firing, t.run.c.state.label("run_state"), t.run.c.reason.label("run_reason"))
    query = query.outerjoin(t.run, t.run.c.id == _F.run_id).where(_F.workflow_id == workflow)
    return database.read(query.order_by(_F.id.desc()).limit(limit))


def last_starts(database: Database, workflows: Collection[str]) -> dict[str, RowMapping]:
    """The newest start of each."""
    newest = sa.select(sa.func.max(_F.id)).where(_F.workflow_id.in_(workflows)).group_by(_F.workflow_id)
    query = sa.select(t.workflow_firing, t.run.c.state.label("run_state"), t.run.c.reason.label("run_reason"))
    query = query.outerjoin(t.run, t.run.c.id == _F.run_id).where(_F.id.in_(newest))
    return {row["workflow_id"]: row for row in database.read(query)}


def start_of(database: Database, run: str) -> RowMapping | None:
    """The start that a run comes from, with the workflow's name and team."""
    query = sa.select(t.workflow_firing, _W.name, _W.team).join(t.workflow, _W.id == _F.workflow_id)
    return database.first(query.where(_F.run_id == run))


def kept_code(database: Database) -> set[tuple[str, str]]:
    """Team and digest of the code of all workflows."""
    rows = database.read(sa.select(_W.team, _W.request))
    codes = ((row["team"], json.loads(row["request"]).get("code")) for row in rows)
    return {(team, code) for team, code in codes if code}


def _tell(connection: Connection, row: RowMapping, message: str, now: float) -> None:
    """Have the team's webhooks told that it could not start a run."""
    hooks = sa.select(t.webhook).where(t.webhook.c.team == row["team"], t.webhook.c.disabled_at.is_(None))
    for hook in connection.execute(hooks).mappings():
        if TOPIC in json.loads(hook["topics"]):
            data = {"workflow": row["name"], "team": row["team"] or None, "message": message}
            insert_notice(connection, hook["id"], TOPIC, row["name"], data, now)


def started_by(database: Database, run: str) -> dict[str, str] | None:
    """``workflow``, ``trigger`` and ``cause``; None of other runs, and when that was forgotten."""
    start = start_of(database, run)
    if start is None:
        return None
    return {"workflow": start["name"], "trigger": start["trigger"], "cause": start["cause"]}
