"""`SinkFeeder`: sends what tasks have reported to the sinks of their runs, from what is stored here.

How far an attempt is is a cursor in the database; one process sends for a sink at a time, under a lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from trainmaster.control.environment import read_secrets
from trainmaster.db import sinks
from trainmaster.db.leases import LEASE_S, is_alive, this_process
from trainmaster.service.notifications.delivery import pause_s
from trainmaster.service.notifications.webhook_targets import Answer, check_url, networks, post
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.server_loops import Turns
from trainmaster.service.sinks.feed import TakenOverError
from trainmaster.service.sinks.mlflow import Mlflow
from trainmaster.service.sinks.mlflow_feed import MlflowFeed, mlflow_of
from trainmaster.service.sinks.wandb import Wandb, wandb_python
from trainmaster.service.sinks.wandb_feed import WandbFeed, wandb_of
from trainmaster.service.teams.team_secrets import TeamSecrets
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import StoreError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.sinks.feed import Feed
    from trainmaster.spec import Recipe

LOOK_S: Final = 5.0
#: At the end of a run its driver waits so long until all is sent; `wandb` is slow to start.
LAST_S: Final = 10.0
WANDB_LAST_S: Final = 60.0
_LONGEST_REST_S: Final = 60.0
_WANDB: Final = "https://api.wandb.ai"
#: The one other W&B server that runs of a server's teams may be sent to; `wandb` finds its address by itself.
WANDB_VARIABLE: Final = "TRAINMASTER_WANDB_URL"
#: Of an answer of the other side.
_MOST_BYTES: Final = 1 << 20
#: The owner of a home may send to his own machine and network.
_EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))

log = logging.getLogger(__name__)


class SinkFeeder:
    """Those of a home; any number of processes may do this at the same time.

    Args:
        opened: the home.
        environ: of the caller, with the secrets of the owner of the home.
        post_to: sends; replaced in tests.
    """

    def __init__(
        self, opened: OpenHome, environ: Mapping[str, str], post_to: Callable[..., Answer] = post
    ) -> None:
        self._opened, self._environ, self._post = opened, environ, post_to
        self._owner = this_process()

    def feed(self, run: str | None = None) -> bool:
        """Send what is due, of one run or all that were sent to a server; whether anything is left to send.

        Raises:
            StoreError: the database cannot be used.
        """
        database, is_left = self._opened.database, False
        for row in sinks.open_sinks(database, run):
            if run is None and row["submitted_by"] is None:
                continue  # who drives it sends
            is_left = True
            now = database.clock_s()
            rests = (
                row["failures"] or row["run_state"] != State.DONE
            )  # what only goes easy does not at the end
            if (rests and row["try_at"] > now) or self._is_anothers(row, now):
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
        wanted = stored_recipe(self._opened.database.run_row(run)).sinks
        if wanted is None or wanted.wandb is None or wanted.wandb.key:
            return ""
        place = self._wandb_place(run)
        return f"sinks: offline runs of W&B: `wandb sync {place}/*/wandb/offline-run-*` sends them"

    def _wandb_place(self, run: str) -> Path:
        return self._opened.home_of(run).run_directory(run) / "wandb"

    def has_wandb(self, run: str | None) -> bool:
        """Whether something is still to be done by `wandb`."""
        with suppress(StoreError):
            return any(row["kind"] == "wandb" for row in sinks.open_sinks(self._opened.database, run))
        return False

    def _is_here(self, run: str) -> bool:
        try:
            self._opened.home_of(run)
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
            log.info("%s: %s: %s", run, kind, trouble)  # its row says it, and who waits for the run is told
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

    def _feed_of(self, row: RowMapping) -> Feed:
        recipe = stored_recipe(self._opened.database.run_row(row["run_id"]))
        team = row["team"]
        values = sink_secrets(self._opened.of_team(team), recipe, self._environ)
        if row["kind"] == "wandb":
            to_wandb = wandb_of(recipe)
            key, place = values.get(to_wandb.key, ""), self._wandb_place(row["run_id"])
            program = Wandb(to_wandb.url, key, wandb_python(), place)
            return WandbFeed(self._opened, row, self._owner, program)
        wanted = mlflow_of(recipe)
        allowed = _EVERYWHERE if team is None else networks(self._environ)

        def post_there(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
            return self._post(url, body, headers, allowed, most_bytes=_MOST_BYTES)

        to = Mlflow(wanted.url, post_there, values.get(wanted.token, ""), values.get(wanted.login, ""))
        return MlflowFeed(self._opened, row, self._owner, to)


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
        found, missing = read_secrets(names, environ, opened.home.secrets_file)
    else:
        found = TeamSecrets(opened.database, opened.home.root, environ).values(opened.team, names)
        missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(
            f"sinks: no value for {', '.join(missing)}",
            "Export it, or put it where other secrets are: see docs/sinks.md.",
        )
    return found


def check_sinks(opened: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Refuse sinks that can never work, before anything starts.

    Raises:
        UsageError: a secret is nowhere, or nothing is sent to such a URL.
    """
    if recipe.sinks is None:
        return
    sink_secrets(opened, recipe, environ)
    if recipe.sinks.mlflow is not None:
        check_url(recipe.sinks.mlflow.url, _EVERYWHERE if opened.team is None else networks(environ))
    if recipe.sinks.wandb is not None:
        wandb_python()
        url = recipe.sinks.wandb.url
        if opened.team is not None and url not in (_WANDB, environ.get(WANDB_VARIABLE)):
            raise UsageError(
                f"sinks.wandb: nothing is sent to {url} from this server",
                f"Leave url out, or have the administrator name it in {WANDB_VARIABLE}.",
            )


class SinkThread:
    """Feeds in the background.

    Args:
        feeder: of a home.
        run: only this one; None for all that were sent to a server.
    """

    def __init__(self, feeder: SinkFeeder, run: str | None = None) -> None:
        self._feeder, self._run = feeder, run
        self._last, self._end = threading.Event(), threading.Event()
        self._is_left = True
        self._turns = Turns("sinks")
        self._thread = threading.Thread(target=self._work, name="sinks", daemon=True)

    def start(self) -> None:
        """Begin; who is killed meanwhile loses nothing."""
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what is under way is not waited for."""
        self._end.set()
        self._last.set()

    def finish(self, is_hurried: Callable[[], bool] = lambda: False) -> str:
        """The run has ended: wait for `LAST_S` at most until all is sent; what to tell the user."""
        self._last.set()
        until = time.monotonic() + (WANDB_LAST_S if self._feeder.has_wandb(self._run) else LAST_S)
        while self._thread.is_alive() and time.monotonic() < until and not is_hurried():
            self._thread.join(0.05)
        self.stop()
        if not self._is_left:
            return self._feeder.unsent(self._run)
        why = f" ({trouble})" if (trouble := self._feeder.trouble(self._run)) else ""
        return f"sinks: not all is sent yet{why}; `trainmaster resume {self._run}` sends the rest"

    def _work(self) -> None:
        while not self._end.is_set():
            is_last, begun = self._last.is_set(), boot_s()  # read before it is looked
            with self._turns.turn():
                self._is_left = self._feeder.feed(self._run)
                if not self._is_left and is_last:
                    return
            rest_s = LOOK_S / 10 if is_last else max(LOOK_S, min(9 * (boot_s() - begun), _LONGEST_REST_S))
            (self._end if is_last else self._last).wait(rest_s)
