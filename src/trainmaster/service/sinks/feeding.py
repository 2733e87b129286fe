"""`SinkFeeder`: sends what tasks have reported to the sinks of their runs, from what is stored here.

How far an attempt is is a cursor in the database; one process sends for a sink at a time, under a lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.task.environment import read_secrets
from trainmaster.dataclass import dataclass
from trainmaster.db import sinks
from trainmaster.db.leases import LEASE_S, is_alive, this_process
from trainmaster.service.notifications.delivery import pause_s
from trainmaster.service.notifications.webhook_targets import ReceiverResponse, post
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.sinks.feed import EVERYWHERE, Feed, SinkContext, TakenOverError, sinks_of
from trainmaster.service.sinks.mlflow import MlflowFeed
from trainmaster.service.sinks.wandb import WandbFeed
from trainmaster.service.teams.team_secrets import TeamSecrets
from trainmaster.spec.addresses import named_networks
from trainmaster.spec.errors import StoreError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe

#: By kind, as the recipe names it.
FEEDS: Final[Mapping[str, type[Feed[Any]]]] = {"mlflow": MlflowFeed, "wandb": WandbFeed}
#: Of an answer of the other side.
_MOST_BYTES: Final = 1 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Destination:
    """What is away or there as one.

    Attributes:
        team: whose runs are sent; None for those of a home.
        kind: of the sinks.
        url: of the other side.
    """

    team: str | None
    kind: str
    url: str


class SinkFeeder:
    """Those of a home; any number of processes may do this at the same time.

    Args:
        opened: the home.
        environ: of the caller, with the secrets of the owner of the home.
        post_to: sends; replaced in tests.
    """

    def __init__(
        self, opened: OpenHome, environ: Mapping[str, str], post_to: Callable[..., ReceiverResponse] = post
    ) -> None:
        self._opened, self._environ, self._post = opened, environ, post_to
        self._owner = this_process()
        self._known: dict[tuple[str, str], Destination] = {}

    def destinations(self, run: str | None = None) -> Set[Destination]:
        """Where anything is left to send to, of one run or all that were sent to a server.

        Raises:
            StoreError: the database cannot be used.
        """
        self._known = {(row["run_id"], row["kind"]): self._destination(row) for row in self._open(run)}
        return set(self._known.values())

    def feed(
        self, run: str | None = None, to: Destination | None = None, *, is_at_once: bool = False
    ) -> bool:
        """Send what is due, to one destination or all; whether anything is left to send.

        Args:
            run: only this one.
            to: only there.
            is_at_once: also to what has failed, and would be tried again later.

        Raises:
            StoreError: the database cannot be used.
        """
        database, is_left = self._opened.database, False
        for row in self._open(run):
            if to not in (None, self._destination(row)):
                continue
            is_left = True
            now = database.clock_s()
            rests = (
                row["failures"] or row["run_state"] != State.DONE
            )  # what only goes easy does not at the end
            if (rests and row["try_at"] > now and not is_at_once) or self._is_anothers(row, now):
                continue
            if not self._is_here(row["run_id"]):
                continue  # the server that has its files sends
            if sinks.claim(database, row, self._owner, now + LEASE_S) and self._feed(row):
                is_left = False
        return is_left

    def trouble(self, run: str | None) -> str:
        """Why something of a run is not sent yet, as far as it is known."""
        with suppress(StoreError):
            found = (row["trouble"] for row in sinks.open_sinks(self._opened.database, run))
            return next((trouble for trouble in found if trouble), "")
        return ""

    def unsent(self, run: str | None) -> str:
        """What the user may send himself of a run that is over: offline runs without a key."""
        if run is None:
            return ""
        recipe = stored_recipe(self._opened.database.run_row(run))
        said = (FEEDS[kind].unsent(sink, self._place(run)) for kind, sink in sinks_of(recipe).items())
        return "\n".join(filter(None, said))

    def _place(self, run: str) -> Path:
        # The server that sends writes there, wherever the run is driven.
        return (self._opened.home_if_here(run) or self._opened.home).run_directory(run)

    def last_s(self, run: str | None) -> float:
        """How long the end of a run may wait for what is left; see `Feed`."""
        with suppress(StoreError):
            kinds = [row["kind"] for row in sinks.open_sinks(self._opened.database, run)]
            return max((FEEDS[kind].last_s for kind in kinds), default=Feed.last_s)
        return Feed.last_s

    def _open(self, run: str | None) -> Sequence[RowMapping]:
        rows = sinks.open_sinks(self._opened.database, run)
        return [row for row in rows if run is not None or row["submitted_by"] is not None]

    def _destination(self, row: RowMapping) -> Destination:
        if (known := self._known.get((row["run_id"], row["kind"]))) is not None:
            return known  # recipes are large, and stay as they are
        recipe = stored_recipe(self._opened.database.run_row(row["run_id"]))
        return Destination(row["team"], row["kind"], sinks_of(recipe)[row["kind"]].url)

    def _is_here(self, run: str) -> bool:
        try:
            self._opened.files_of(run)
        except UsageError:
            return False
        return True

    def _is_anothers(self, row: RowMapping, now: float) -> bool:
        owner = row["owner"]
        return owner not in (None, self._owner) and is_alive(owner, row["expires_at"], now)

    def _feed(self, row: RowMapping) -> bool:
        """One sink; whether it has all of its run."""
        database, run, kind = self._opened.database, row["run_id"], row["kind"]
        try:
            feed = self._feed_of(row)
            is_whole = feed.feed()
        except TakenOverError:
            return False
        except StoreError:
            raise
        except TrainmasterError as error:
            trouble = one_line(error)
            log.info("%s: %s: %s", run, kind, trouble)  # its row says it, and what waits for the run is told
            self._put_off(row, trouble)
            return False
        except Exception as error:  # a mistake of ours in one of them: the others are still to be fed
            log.exception("%s: %s: internal error", run, kind)
            self._put_off(row, f"internal error: {type(error).__name__}")
            return False
        state = State.DONE if is_whole else State.RUNNING
        sinks.change(
            database, run, kind, self._owner, trouble=feed.refused, failures=0,
            try_at=database.clock_s() + feed.pause_s if feed.pause_s else 0.0,
            owner=None, expires_at=None, state=state,
        )  # fmt: skip
        return is_whole

    def _put_off(self, row: RowMapping, trouble: str) -> None:
        """Try again later."""
        failures = row["failures"] + 1
        sinks.change(
            self._opened.database, row["run_id"], row["kind"], self._owner, trouble=trouble,
            failures=failures, try_at=self._opened.database.clock_s() + pause_s(failures), owner=None,
            expires_at=None,
        )  # fmt: skip

    def _feed_of(self, row: RowMapping) -> Feed[Any]:
        recipe, team = stored_recipe(self._opened.database.run_row(row["run_id"])), row["team"]
        values = sink_secrets(self._opened.of_team(team), recipe, self._environ)

        def post_there(url: str, body: bytes, headers: Mapping[str, str]) -> ReceiverResponse:
            allowed = EVERYWHERE if team is None else named_networks(self._environ)
            return self._post(url, body, headers, allowed, most_bytes=_MOST_BYTES)

        context = SinkContext(values, post_there, self._place(row["run_id"]))
        return FEEDS[row["kind"]](self._opened, row, self._owner, context)


def sink_secrets(opened: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """Values of the secrets that the sinks of a recipe need.

    Args:
        opened: the home, as the team sees it whose run it is.
        recipe: names them.
        environ: of the owner of the home.

    Raises:
        UsageError: one is nowhere.
    """
    names = () if recipe.sinks is None else recipe.sinks.secrets
    if opened.team is None:
        found, missing = read_secrets(names, environ, opened.home.secrets_file, recipe.env_files)
    else:
        found = TeamSecrets(opened.database, opened.home.root, environ).values(opened.team, names)
        missing = [name for name in names if name not in found]
    if missing:
        where = opened.home.secrets_hint
        if opened.team is not None:
            where = f"A manager sets it: `trainmaster secret set {opened.team} {missing[0]}`."
        raise UsageError(f"sinks: no value for {', '.join(missing)}", where)
    return found


def check_sinks(opened: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Refuse sinks that can never work, before anything starts.

    Raises:
        UsageError: a secret is nowhere, or nothing is sent to such a URL.
        MissingPartError: what sends is not installed.
    """
    sink_secrets(opened, recipe, environ)
    for kind, sink in sinks_of(recipe).items():
        FEEDS[kind].check(sink, environ, is_team=opened.team is not None)
