"""`Retention`: what a server keeps for how long, in one table, and what removes the rest.

Runs with their logs, curves and models are kept until somebody removes them, or for as long as is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trainmaster.artifacts.publishing import delete
from trainmaster.control.task.layout import Home
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, registry
from trainmaster.db import removals as rows
from trainmaster.db.queries import ALL_RUNS
from trainmaster.db.webhook_rows import SHOWN_S
from trainmaster.objects import ObjectStore
from trainmaster.service.driving.replicas import remove_unused_code
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.quote_requests import KEPT_S
from trainmaster.service.server_loops import ServerLoop
from trainmaster.service.storage.pruning import Pruning
from trainmaster.spec.errors import PublishError, UsageError, fails_as, one_line
from trainmaster.spec.units import parse_duration

#: Says otherwise, such as ``audit=730d,sealed=7d``.
VARIABLE: Final = "TRAINMASTER_KEEP"
DAY_S: Final = 86400.0
SWEEP_EVERY_S: Final = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How long one kind of thing is kept.

    Attributes:
        kind: its name.
        seconds: how long it is kept.
        what: it is, and since when that counts.
    """

    kind: str
    seconds: float
    what: str


KEPT: Final = (
    RetentionRule("audit", 365 * DAY_S, "who did, or was refused, what"),
    RetentionRule("sealed", 30 * DAY_S, "keys and secrets of runs that did not succeed, after their end"),
    RetentionRule("code", 7 * DAY_S, "code on the object store that no run names, after it was put there"),
    RetentionRule("models", 30 * DAY_S, "files of models that were taken out of the registry, after that"),
    RetentionRule("starts", 365 * DAY_S, "the history of workflows"),
    RetentionRule("notices", SHOWN_S, "messages to webhooks, after they were taken or given up"),
    RetentionRule("quotes", KEPT_S, "quotes and plans that were asked for, after their answer"),
    RetentionRule("invites", 7 * DAY_S, "invites, after they expired"),
    RetentionRule("sessions", 0.0, "logins of browsers, after they expired"),
    RetentionRule("device_logins", 0.0, "logins of command lines that were not finished, after they expired"),
    RetentionRule("sign_ins", 0.0, "single sign-ons that were not finished, after they expired"),
    RetentionRule("login_attempts", DAY_S, "logins that went wrong"),
)
#: Kept for ever unless `VARIABLE` says for how long; at home, `trainmaster prune` goes by it.
FOR_EVER: Final = (
    RetentionRule("runs", 0.0, "runs, after their end, but for what something needs"),
    RetentionRule("checkpoints", 0.0, "checkpoints of tasks that succeeded, after the end of their run"),
)
#: What `VARIABLE` may change.
CHANGEABLE: Final = ("audit", "sealed", "code", "models", *(each.kind for each in FOR_EVER))


def kept(environ: Mapping[str, str]) -> tuple[RetentionRule, ...]:
    """The table, with what a variable says otherwise.

    Raises:
        UsageError: it names something else, or no duration.

    >>> kept({"TRAINMASTER_KEEP": "audit=730d"})[0].seconds / DAY_S
    730.0
    """
    changed: dict[str, float] = {}
    for entry in filter(None, environ.get(VARIABLE, "").split(",")):
        kind, _, length = (part.strip() for part in entry.partition("="))
        if kind not in CHANGEABLE:
            raise UsageError(f"{VARIABLE}: {entry}", f"It is for {', '.join(CHANGEABLE)}.")
        with fails_as(f"{VARIABLE}: {entry}", "Write it as audit=365d,sealed=30d.", on=ValueError):
            changed[kind] = parse_duration(length)
    asked = tuple(each for each in FOR_EVER if each.kind in changed)
    return tuple(replace(each, seconds=changed.get(each.kind, each.seconds)) for each in (*KEPT, *asked))


def bounded(environ: Mapping[str, str]) -> dict[str, float]:
    """How long what is else kept for ever is kept, in seconds, by kind.

    Raises:
        UsageError: the variable is wrong.

    >>> bounded({}), bounded({"TRAINMASTER_KEEP": "runs=1d"})
    ({}, {'runs': 86400.0})
    """
    names = [each.kind for each in FOR_EVER]
    return {each.kind: each.seconds for each in kept(environ) if each.kind in names}


def told(environ: Mapping[str, str]) -> str:
    """The table for people, in a line."""
    table = [each for each in kept(environ) if each.seconds]
    days = [(each.kind, each.seconds / DAY_S) for each in table]
    return ", ".join(f"{kind} {count:g} day{'s' * (count != 1)}" for kind, count in days)


class Retention(ServerLoop):
    """Removes what is old, now and from time to time.

    Args:
        home: of the server.
        database: of the home.
        environ: `VARIABLE` is looked up there.

    Raises:
        UsageError: what it says is wrong.
    """

    def __init__(self, home: Home, database: Database, environ: Mapping[str, str]) -> None:
        super().__init__("retention", SWEEP_EVERY_S, is_awaited=False)
        self._home = home
        self._database = database
        self.table, self._bounded = kept(environ), bounded(environ)

    def turn(self) -> None:
        """Remove what is old."""
        if removed := self.sweep():
            log.info("removed what is old: %s", removed)

    def sweep(self) -> dict[str, int]:
        """Remove what is old; how many of each kind. May be killed, and done by several servers, at any time.

        Raises:
            TrainmasterError: the database or the object store is away.
        """
        now = self._database.clock_s()
        removed = {}
        for each in self.table:
            if each.kind == "models":
                removed[each.kind] = remove_files(self._home, self._database, now - each.seconds)
            elif each.kind == "code":
                removed[each.kind] = remove_unused_code(
                    self._home.store_url, self._database, now - each.seconds
                )
            elif each.kind in self._bounded:
                continue
            else:
                removed[each.kind] = rows.remove_older(self._database, each.kind, now - each.seconds)
        kinds = ["runs", *(kind for kind in self._bounded if kind != "runs")]
        pruning = Pruning(OpenHome(self._home, self._database), ALL_RUNS, "retention", kept_s=self._bounded)
        for kind, found in pruning.prune(kinds)["kinds"].items():
            removed[kind] = found["count"]
            if "trouble" in found:
                log.info("%s stay: %s", kind, found["trouble"])
        return {kind: count for kind, count in removed.items() if count}


def remove_files(home: Home, database: Database, before: float) -> int:
    """Remove the files of models that were removed before a time; how many models.

    The run has the model no more before the first file goes, so it may be killed at any line and repeated.

    Args:
        home: of the server; what lies on another store than its own stays.
        database: of the home.
        before: Unix seconds.

    Raises:
        StoreError: the database cannot be used.
    """
    count = 0
    for row in registry.removed_before(database, before):
        if not row["uri"].startswith(home.store_url.rstrip("/") + "/"):
            continue
        try:
            if _is_elsewhere(row["uri"]) or not registry.give_up(database, row, before, database.clock_s()):
                continue
            delete(row["uri"])
        except PublishError as error:  # the next sweep tries again
            log.info("files of %s stay: %s", row["uri"], one_line(error))
            continue
        registry.forget(database, row)
        count += 1
    return count


def _is_elsewhere(uri: str) -> bool:
    """A directory of that name may be on the disk of another server, and not here."""
    return uri.startswith("file://") and next(iter(ObjectStore(uri).list("")), None) is None
