"""`Apps`: the apps that a caller sees, opens and ends."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster.db import apps as rows
from trainmaster.db.leases import is_alive
from trainmaster.db.row_values import columns
from trainmaster.service.runs.member_ways import check_member
from trainmaster.service.service import Service
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.access import digest_of
from trainmaster.service.users.caller import Caller, Credential, ForbiddenError
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.states import State

TENSORBOARD: Final = "tensorboard"
NOTEBOOK: Final = "notebook"
#: Whatever answers at a port of a member.
PORT: Final = "port"
_MAX_PORT: Final = 65535
#: So many runs are shown in one app, and so many apps are told.
MOST_RUNS: Final = 20
MOST_APPS: Final = 200
#: An app without requests ends after so long.
IDLE_S: Final = 1800.0
#: A ticket is for one moment: between a click and what the browser opens then.
TICKET_S: Final = 60.0
#: So many apps of a team are open at once: each takes memory of the server's machine.
MOST_OPEN: Final = 10


def need_entry(row: RowMapping, caller: Caller) -> None:
    """Refuse whom an app that the caller sees does not let in.

    A notebook does what its user says, in his name, so it is for him alone; and as this machine does it, too,
    only as long as he is an admin, or the home has no other user (see `Submissions.may_use_machine`).

    Raises:
        ForbiddenError: the caller.
    """
    caller.need("read" if row["kind"] == TENSORBOARD else "run")
    if row["kind"] == NOTEBOOK and row["opened_by"] != caller.name:
        raise ForbiddenError(f"it is the notebook of {row['opened_by']}", "Open one of your own.")
    if row["kind"] == NOTEBOOK and caller.team is not None and not caller.sees_all:
        raise ForbiddenError(
            "on a server for several people notebooks are for its admins",
            "Open one on your own machine: `trainmaster --local notebook`.",
        )


class Apps:
    """What a caller sees of the apps of a home; to it, those of others are not there.

    Args:
        service: of the home.
        caller: who asks; it may `read`.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        caller.need("read")
        self._service, self._caller = service, caller

    def tensorboard(self, runs: Sequence[str]) -> dict[str, Any]:
        """Open a TensorBoard of runs, or find the one that is open.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
            UsageError: no run, too many, of several teams, or too many apps.
        """
        self._caller.need("run")
        found = TeamRuns(self._service, self._caller)
        ids = sorted({found.resolve(run) for run in runs})
        if not ids or len(ids) > MOST_RUNS:
            raise UsageError(
                f"{len(ids)} runs for one TensorBoard",
                f"Name 1 to {MOST_RUNS}; `metrics export` has no limit.",
            )
        teams = {found.row(run)["team"] for run in ids}
        if len(teams) > 1:
            raise UsageError(f"runs of {len(teams)} teams for one TensorBoard", "Open one for each team.")
        for run in ids:
            self._service.files_of(run)  # refused where its files are not here
        return self._opened(TENSORBOARD, ids, teams.pop())

    def notebook(self, run: str | None, directory: Path | None = None) -> dict[str, Any]:
        """Open a JupyterLab for the caller alone, or find the one that is open.

        Args:
            run: it has a copy of its code, its data, models, checkpoints and Python; None for an empty one.
            directory: where the work of an empty one is; None for one of the caller's in the home.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
            UsageError: the run's files are not here, or there are too many apps.
        """
        self._caller.need("run")
        ids, team = [], self._caller.team
        if run is not None:
            found = TeamRuns(self._service, self._caller)
            ids = [found.resolve(run)]
            self._service.files_of(ids[0])  # refused where its files are not here
            team = found.row(ids[0])["team"]
        if directory is None or ids:
            whose = hashlib.sha256(self._caller.name.encode()).hexdigest()[:8]
            place = self._service.home.root / "notebooks"
            directory = place / (ids[0] if ids else "empty")
            if self._caller.team is not None or self._caller.account is not None:
                directory = place / f"of-{whose}" / directory.name
        return self._opened(NOTEBOOK, ids, team, directory=str(directory))

    def port(self, run: str, member: str | None, port: int) -> dict[str, Any]:
        """Lead browsers to a port of a member, such as the dashboard of Ray; or find what does so already.

        Args:
            run: its id.
            member: such as ``worker-1``; None for the first one there is.
            port: at which it answers browsers.

        Raises:
            NotFoundError: there is no such run or member, or it is not the caller's to see.
            UsageError: the run is over, that is no port, or there are too many apps.
        """
        self._caller.need("run")
        found = TeamRuns(self._service, self._caller)
        row = found.row(found.resolve(run))
        if not 1 <= port <= _MAX_PORT:
            raise UsageError(f"{port} is no port", f"Give a number from 1 to {_MAX_PORT}.")
        if row["state"] == State.DONE:
            raise UsageError(f"{row['id']} is over", "Ports of its members are open while it runs.")
        check_member(self._service, row["id"], member)
        self._service.files_of(row["id"])
        return self._opened(
            PORT, [row["id"]], row["team"],
            run_id=row["id"], member=member, port=port, state=State.RUNNING,
        )  # fmt: skip

    def _opened(
        self, kind: str, runs: Sequence[str], team: str | None, **more: str | int | None
    ) -> dict[str, Any]:
        """The app is seen by the team of the runs: who opens it may be an admin of another one."""
        home_id = self._service.home.identity()
        whole = [kind, self._caller.team, home_id, runs, *([more] if more else [])]
        if kind == NOTEBOOK:
            whole.append(self._caller.name)
        place = hashlib.sha256(json.dumps(whole).encode()).hexdigest()
        now = time.time()
        row = {
            "id": f"{kind[:2]}-{secrets.token_hex(8)}",
            "kind": kind,
            "team": team,
            "opened_by": self._caller.name,
            "account": self._caller.account,
            "runs": json.dumps(runs),
            "home_id": home_id,
            "place": place,
            "state": State.WAITING,
            "created_at": now,
            "used_at": now,
            **more,
        }
        found = rows.add(self._service.database, row, MOST_OPEN)
        if found is None:
            raise UsageError(
                f"{MOST_OPEN} apps are open already",
                "End one of them, or wait: unused ones end by themselves.",
            )
        return self._told(found)

    def listed(self) -> list[dict[str, Any]]:
        """The newest `MOST_APPS`, the newest first."""
        teams = None if self._caller.sees_all else [self._caller.team]
        return [self._told(row) for row in rows.apps(self._service.database, teams, MOST_APPS)]

    def show(self, app: str) -> dict[str, Any]:
        """One of them.

        Returns:
            ``app``, ``kind``, ``team``, ``opened_by``, ``runs``, ``state`` (WAITING, RUNNING, STOPPING,
            DONE), ``reason`` (why it is over), ``run``, ``member`` and ``port`` (of a port), ``directory``
            (of a notebook: where its user's work stays), ``created_at``, ``used_at``, ``ended_at``,
            ``idle_s`` (after so long without use it ends), ``usd_per_hour``.

        Raises:
            NotFoundError: there is none, or it is not the caller's to see.
        """
        return self._told(self._row(app))

    def end(self, app: str) -> None:
        """Ask for its end.

        Raises:
            NotFoundError: there is none, or it is not the caller's to see.
        """
        self._caller.need("run")
        row = self._row(app)
        if row["owner"] is None:
            rows.end(self._service.database, row["id"], "ended by hand", time.time())
        else:  # its process ends it, soon; who opens the same now gets another one
            rows.change(self._service.database, row["id"], ends=True, place=None)

    def ticket(self, app: str, credential: Credential | None) -> str:
        """What lets a browser in, once, and soon; it is kept as SHA-256 only.

        Args:
            app: its id.
            credential: what the caller asks with: it ends with that; None for who has the machine.

        Raises:
            NotFoundError: there is none, or it is not the caller's to see.
            ForbiddenError: it is the notebook of another one.
            UsageError: it is over, or does not answer yet.
        """
        row = self._row(app)
        need_entry(row, self._caller)
        if row["state"] != State.RUNNING or row["ends"]:
            raise UsageError(f"{app} {self._why_not(row)}", "Open it again, or wait for it.")
        secret, now = secrets.token_urlsafe(32), self._service.database.clock_s()
        ticket = {
            "digest": digest_of(secret),
            "app_id": row["id"],
            "is_ticket": True,
            "expires_at": now + TICKET_S,
            "credential": credential.digest if credential is not None else None,
            "is_session": credential is not None and credential.is_session,
            "team": credential.team if credential is not None else None,
        }
        rows.add_pass(self._service.database, ticket, now)
        return secret

    def _row(self, app: str) -> RowMapping:
        row = rows.find(self._service.database, app)
        if row is None or not self._caller.sees(row["team"]):
            raise NotFoundError(f"there is no app {app!r}", "`trainmaster apps` lists them.")
        return row

    def _why_not(self, row: RowMapping) -> str:
        if row["state"] == State.DONE:
            return f"is over: {row['reason']}"
        return "ends" if row["ends"] else "does not answer yet"

    def _told(self, row: RowMapping) -> dict[str, Any]:
        state, reason = row["state"], row["reason"]
        now = self._service.database.clock_s()
        if state != State.DONE and row["owner"] and not is_alive(row["owner"], row["expires_at"], now):
            state, reason = State.DONE, "its machine is away"
        if state != State.DONE and row["ends"]:
            state = State.STOPPING
        return {
            "app": row["id"],
            **columns(row, "kind", "team", "opened_by"),
            "runs": json.loads(row["runs"]),
            "state": state,
            "reason": reason,
            "run": row["run_id"],
            **columns(row, "directory", "member"),
            "port": row["port"] if row["kind"] == PORT else None,
            **columns(row, "created_at", "used_at", "ended_at"),
            "idle_s": IDLE_S,
            "usd_per_hour": 0.0,  # on the server's own machine
        }
