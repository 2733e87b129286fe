"""`Triggers`: looks for new versions of volumes and for times that have come, and starts runs of workflows.

Every server looks, and may be killed at any line: a start is a row with a unique key, and its run is written
in the transaction that ends the waiting of that row (`db.workflow_rows`). So what is seen twice starts one
run, and what was seen before a server died is started by the next one that looks.

`registrants`: who has registered workflows, and what that allows now.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import workflow_rows as rows
from trainmaster.db.workflow_starts import StartTakenError
from trainmaster.objects import ObjectStore
from trainmaster.service.driving.submissions import RunRequest, Start, Submissions
from trainmaster.service.server_loops import ServerLoop
from trainmaster.service.teams.team_volumes import volumes_url
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import Caller, Creator, caller
from trainmaster.service.workflows.decisions import (
    LATE_S,
    Due,
    Waiting,
    chain_fault,
    due_time,
    due_version,
    plan,
)
from trainmaster.spec.errors import (
    AccessError,
    FullDiskError,
    ProviderError,
    PublishError,
    StoreError,
    TrainmasterError,
    one_line,
)
from trainmaster.spec.states import EndReason
from trainmaster.spec.trigger import Trigger
from trainmaster.volumes.packed.head import MADE_BY, head_key, head_numbers, head_of, newest_version

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database
    from trainmaster.service.service import Service


def registrants(database: Database, workflows: Collection[Mapping[Any, Any]]) -> list[Caller | str]:
    """As whom each of these workflows starts its runs, or why it may start none any more.

    Both the account and the token that it was registered with must be good, and may run something.
    """
    makers = [
        Creator(row["registered_by"], row["account"], row["token"], row["team"] or None) for row in workflows
    ]
    found = Access(database).left_by(makers)
    return [_as_whom(maker, found[maker]) for maker in makers]


def _as_whom(maker: Creator, found: Caller | AccessError) -> Caller | str:
    try:
        if isinstance(found, AccessError):
            raise found
        found.need("run")
    except AccessError as error:
        return f"{error.args[0]}: take it over or register it again"
    return caller(maker.name, maker.team, found.scopes & {"read", "run"})


#: New versions and times are looked for so often, in seconds.
LOOK_S: Final = 1.5
#: All versions of a volume are listed at every so many looks; else one object is asked for.
_LIST_EVERY: Final = 30
#: A server that starts a run has so long, before another server may try.
CLAIM_S: Final = 60.0
#: What may pass by itself is tried again, this long after the first time, then twice as long, and so on.
_RETRY_S, _LONGEST_RETRY_S = 5.0, 600.0
#: It passes by itself.
_PASSING: Final = (StoreError, ProviderError, PublishError, FullDiskError)
_AT_ONCE: Final = 4
#: Behind what was skipped for a start: why it is tried again.
_AGAIN: Final = "tried again: "

log = logging.getLogger(__name__)


class Triggers(ServerLoop):
    """Those of all workflows of a database.

    Args:
        service: of the home.
        submissions: takes their runs.
        environ: of the processes that drive.
    """

    def __init__(self, service: Service, submissions: Submissions, environ: Mapping[str, str]) -> None:
        super().__init__("workflows", LOOK_S, threads=_AT_ONCE)
        self._service = service
        self._database = service.database
        self._submissions = submissions
        self._environ = environ
        self._busy: set[int] = set()
        self._known: dict[str, tuple[int, int]] = {}  # largest number ever used, and newest version
        self._looks = 0
        self._times: dict[tuple[str, str], float] = {}  # when each schedule comes next

    def turn(self) -> None:
        """Look; the next time when something is due."""
        self._pause_s = LOOK_S
        self.look()
        self._pause_s = self.pause_s()

    def look(self) -> None:
        """Look once.

        Raises:
            StoreError: the database cannot be used.
        """
        self._looks += 1
        known, self._times = self._times, {}
        workflows = self._allowed(rows.enabled(self._database))
        triggers = rows.triggers(self._database, [row["id"] for row in workflows]) if workflows else {}
        for workflow in workflows:
            for row in triggers[workflow["id"]]:
                try:
                    self._fire(workflow, row, known)
                except (PublishError, OSError) as error:  # of the volume's store
                    log.info("%s of %s: %s", row["key"], workflow["name"], one_line(error))
                except StoreError:
                    raise
                except (
                    Exception
                ):  # such as a time zone that this server lacks: the others are still looked at
                    log.exception("%s of %s cannot be looked at", row["key"], workflow["name"])
        self.start_waiting()

    def pause_s(self) -> float:
        """After how many seconds to look again: no schedule's time is waited past."""
        now = self._database.clock_s()
        return min([LOOK_S, *(max(at - now, 0.0) for at in self._times.values())])

    def _allowed(self, workflows: Sequence[RowMapping]) -> list[RowMapping]:
        """Those that may start runs still; the others are paused."""
        found = registrants(self._database, workflows)
        for row, who in zip(workflows, found, strict=True):
            if isinstance(who, str):
                rows.refuse(self._database, row["id"], who, self._database.clock_s())
        return [row for row, who in zip(workflows, found, strict=True) if not isinstance(who, str)]

    # --- what has come ------------------------------------------------------------------------------

    def _fire(self, workflow: RowMapping, row: RowMapping, known: Mapping[tuple[str, str], float]) -> None:
        trigger, now = Trigger.model_validate_json(row["data"]), self._database.clock_s()
        chain: tuple[str, ...] = ()
        if trigger.volume is not None:
            url = f"{volumes_url(self._service.home, workflow['team'] or None)}/{trigger.volume}"
            due = self._due_version(url, trigger.volume, row["seen"])
            if due is not None:
                chain = self._chain(url, int(due.seen))
        else:
            seen = row["seen"]
            if seen > now + LATE_S:  # the clock was set back: it would start nothing until it is there again
                rows.set_back(self._database, workflow["id"], row["key"], seen, now)
                seen = now
            due = None if trigger.schedule is None else due_time(trigger, seen, now)
            place = workflow["id"], row["key"]
            for at in [known[place]] if known.get(place, 0.0) > now else trigger.next_times(now, 1):
                self._times[place] = at
        if due is None:
            return
        if not due.starts:
            rows.pass_over(self._database, workflow["id"], row["key"], due.seen)
            return
        fault = chain_fault(workflow["id"], chain, rows.names(self._database)) if chain else ""
        cause = rows.Cause(row["key"], due.cause, due.message, chain, fault)
        rows.fire(self._database, workflow["id"], cause, now, (row["seen"], due.seen))

    def _due_version(self, url: str, volume: str, seen: float) -> Due | None:
        store, known = ObjectStore(url), self._known.get(url)
        if (
            known is not None
            and known[1] <= seen
            and self._looks % _LIST_EVERY
            and not store.exists(head_key(known[0] + 1))
        ):
            return None
        alive, most = head_numbers(store)
        newest = newest_version(store, alive)
        self._known[url] = most, newest
        return due_version(volume, seen, [number for number in alive if number <= newest])

    def _chain(self, url: str, version: int) -> tuple[str, ...]:
        """The workflows that led to a version: that of the run that made it, and those before."""
        head = head_of(ObjectStore(url), version)
        for note in () if head is None else head.notes:
            if note.startswith(MADE_BY):
                start = rows.start_of(self._database, note.removeprefix(MADE_BY))
                if start is not None:
                    return (*json.loads(start["chain"]), start["workflow_id"])
        return ()

    # --- what waits ---------------------------------------------------------------------------------

    def start_waiting(self) -> None:
        """Start what may start now, and skip what never will.

        Raises:
            StoreError: the database cannot be used.
        """
        waiting: dict[str, list[RowMapping]] = {}
        for row in rows.waiting(self._database):
            waiting.setdefault(row["workflow_id"], []).append(row)
        if not waiting:
            return
        under_way = rows.under_way(self._database, list(waiting))
        for workflow, found in waiting.items():
            self._settle(found, under_way.get(workflow, []))

    def _settle(self, found: Sequence[RowMapping], under_way: Sequence[str]) -> None:
        now = self._database.clock_s()
        waiting = [Waiting(row["id"], row["cause"], row["due_at"]) for row in found]
        wanted = plan(found[0]["concurrency"], waiting, under_way, now)
        for firing, why in wanted.skip.items():
            rows.end(self._database, firing, rows.SKIPPED, why, now)
        for run in wanted.cancel:
            if self._database.stop_wanted(run) is None:
                self._service.database.want_stop(run, EndReason.CANCELLED)
        for row in found:
            if row["id"] == wanted.start and row["id"] not in self._busy:
                self._busy.add(row["id"])
                self.submit(self._start, row)

    def _start(self, row: RowMapping) -> None:
        try:
            now = self._database.clock_s()
            if rows.claim(self._database, row, now + CLAIM_S):
                self._submit(row, now)
        except StoreError as error:  # it waits, and the next look finds it
            log.info("%s was not started: %s", row["name"], one_line(error))
        finally:
            self._busy.discard(row["id"])

    def _submit(self, row: RowMapping, now: float) -> None:
        firing, team = int(row["id"]), row["team"] or None
        try:
            (who,) = registrants(self._database, [row])
            if isinstance(who, str):
                rows.end(self._database, firing, rows.REFUSED, who, now)
                return
            request = RunRequest(**json.loads(row["request"]))
            self._submissions.submit(who, request, start=Start(firing, _versions(row)))
        except StartTakenError:  # another server was quicker, or a run has begun meanwhile
            rows.put_off(self._database, firing, now, row["message"])
        except _PASSING as error:
            wait_s = min(_RETRY_S * 2.0 ** min(int(row["tries"]), 16), _LONGEST_RETRY_S)
            with suppress(StoreError):
                skipped = row["message"].partition(_AGAIN)[0].strip()
                message = f"{skipped} {_AGAIN}{one_line(error)}".strip()
                rows.put_off(self._database, firing, now + wait_s, message)
            log.info("%s of team %s was not started: %s", row["name"], team, one_line(error))
        except TrainmasterError as error:
            rows.end(self._database, firing, rows.REFUSED, one_line(error), now)
        except Exception as error:
            log.exception("%s could not be started", row["name"])
            why = f"internal error: {type(error).__name__}: {error}"
            rows.end(self._database, firing, rows.REFUSED, why, now)


def _versions(row: Mapping[Any, Any]) -> dict[str, int]:
    """Which version of its volume a start is for."""
    kind, _, volume = row["trigger"].partition(" ")
    version = row["cause"].rpartition("@")[2]
    return {volume: int(version)} if kind == "volume" else {}
