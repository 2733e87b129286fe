"""Runs that are away, as their home sees them: read from the object store, ended by a wish, taken back.

What a machine's driver publishes is written into the home's database, so that every verb shows it as of any
other run. A driver that has said nothing for `LOST_S` is lost with its machine: the next process claims the
run, and goes on with what was published last. `resume` and `cancel` do so themselves, verbs that look at it
start a driver in the background.
"""

from __future__ import annotations

import atexit
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Final

from trainmaster.cluster.record import ClusterState
from trainmaster.dataclass import dataclass, field
from trainmaster.db import run_facts, run_transfer
from trainmaster.db.leases import LEASE_S
from trainmaster.objects import ObjectStore
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.sent_settings import remove_login
from trainmaster.service.background import begun
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.notifications.delivery import deliver_left
from trainmaster.service.on_cluster.assignment import key_of, resealed
from trainmaster.service.on_cluster.driver_store import GIVES_UP_S, LOST_S, DriverStore, Published
from trainmaster.service.open_home import OpenHome
from trainmaster.spec.errors import ProviderError, PublishError, TrainmasterError, UsageError
from trainmaster.spec.facts import Approval
from trainmaster.spec.states import EndReason, State

#: A command that only shows runs waits so long for the object store, in seconds; then as they are known.
ANSWERS_WITHIN_S: Final = 4.0
#: A store that takes longer to cancel a run is asked whether it says anything at all.
_SLOW_S: Final = 1.0
#: How often a run is looked at that somebody follows, in seconds.
FOLLOW_S: Final = 1.0
#: And one that has ended, and whose driver gives back its machines.
_LAST_S: Final = 0.2
#: A process that ends while one is taken back waits so long for the end of that.
_LEAVES_WITHIN_S: Final = 30.0
#: And so long for the end of the login that its machine had; else that goes with the machine.
_REMOVES_WITHIN_S: Final = 10.0
#: A wait for a look checks so often whether it takes the run back by now.
_LOOKS_ANEW_S: Final = 0.05
#: So often at most somebody else may have brought a run on before us.
_TRIES: Final = 20
#: A driver for a run that is still lost is asked for again after so long, in seconds,
_AGAIN_S: Final = 30.0
#: and then each time after twice as long, up to this.
_LONGEST_AGAIN_S: Final = 600.0
#: A process that hands a run over has heard of its machine by then, or was killed.
_HANDS_OVER_S: Final = 120.0


@dataclass(slots=True)
class _Tries:
    """Of having a run driven whose driver is lost.

    Attributes:
        again_at: when the next one is due, by this process's own clock.
        pause_s: how long that is after the one before.
    """

    again_at: float
    pause_s: float


@dataclass(slots=True)
class AwayRuns:
    """Those of a home.

    Args:
        home: its own.
        environ: of the caller: credentials.
        lost_s: how long a driver may be silent, for tests.
        go_on: has a run driven whose driver is lost, again where that failed; None: that is left to others.
        answers_within_s: how long `follow` and `look_at_all` wait for the store, in seconds.
    """

    home: OpenHome
    environ: Mapping[str, str]
    lost_s: float = LOST_S
    go_on: Callable[[str], object] | None = None
    answers_within_s: float = ANSWERS_WITHIN_S
    _tries: dict[str, _Tries] = field(default_factory=dict, init=False)
    _followed: set[str] = field(default_factory=set, init=False)
    _coming: set[str] = field(default_factory=set, init=False)

    def follow(self, run: str) -> None:
        """Bring a run on, and go on with that as long as this process lives; nothing if it is not away.

        While the object store cannot be read, or stalls, it stays as it was.
        """
        row = self.home.database.run_row(run)
        # One that is over is taken back here: this process may end before its thread has done so.
        if row["away"] is None or (run in self._followed and row["state"] != State.DONE):
            return
        self._look_in_time([run], PublishError)
        if run in self._followed:
            return
        self._followed.add(run)
        following = threading.Thread(target=self._follow, args=(run,), name=f"follows {run}", daemon=True)
        atexit.register(self._leave, run, following)
        following.start()

    def look_at_all(self) -> None:
        """Bring all of them on; what cannot be read stays as it was."""
        self._look_in_time(
            run_transfer.runs_away(self.home.database, self.home.home.identity()), TrainmasterError
        )

    def look(self, run: str) -> None:
        """Bring a run on to what its driver has published; take it back if that is over, go on if it is lost.

        Raises:
            PublishError: the object store cannot be read.
        """
        found = self._look(run)
        if found is None:
            return
        store, state, is_left = found
        is_done = self.home.database.run_row(run)["state"] == State.DONE
        if (state is not None and state.is_over) or (is_left and is_done):
            self._take_back(run, store)
        elif is_left and self.go_on is not None:
            before = self._tries.get(run)
            pause_s = _AGAIN_S if before is None else min(2 * before.pause_s, _LONGEST_AGAIN_S)
            self._tries[run] = _Tries(time.monotonic() + pause_s, pause_s)
            self.go_on(run)

    def cancel(self, run: str) -> bool:
        """Ask the driver to end a run; False if it is not away (any more): end it here.

        Raises:
            PublishError: the object store cannot be read or written, or says nothing.
        """
        row = self.home.database.run_row(run)
        if row["away"] is None:
            return False
        answer = begun(lambda: self._cancel(run), f"cancels {run}")
        store = ObjectStore(row["store_url"])
        while not wait([answer], _SLOW_S).done:  # its requests are tried again for half a minute
            if run not in self._coming and not store.answers(self.answers_within_s) and not answer.done():
                raise self._unheard(row)
        return answer.result()

    def _cancel(self, run: str) -> bool:
        self.take_back(run)
        row = self.home.database.run_row(run)
        if row["away"] is None:
            return False
        self._store(row).wish(EndReason.CANCELLED)
        return True

    def cancel_tasks(self, run: str) -> None:
        """Tell the driver which tasks people want ended, as its home knows; if the run is still away.

        Raises:
            PublishError: the object store cannot be written.
        """
        row = self.home.database.run_row(run)
        if row["away"] is not None:
            self._store(row).put_cancelled_tasks(self.home.database.cancelled_tasks(run))

    def answer(self, run: str, experiment: str, said: Approval) -> bool:
        """Tell the driver what a person says of an experiment; False if it is not away (any more).

        Raises:
            PublishError: the object store cannot be read or written.
        """
        self.look(run)
        row = self.home.database.run_row(run)
        if row["away"] is None:
            return False
        if store := self._store(row).answer(experiment):
            raise run_facts.answered(run, experiment, store)
        run_facts.check_asked(self.home.database, run, experiment)
        self._store(row).put_answer(experiment, said)
        return True

    def _unheard(self, row: Mapping[Any, Any]) -> PublishError:
        """A store says nothing through which a driver is to be asked for the end of its run."""
        away, heard = json.loads(row["away"]), row["lease_expires_at"] - LEASE_S
        at = time.strftime("%H:%M:%S", time.localtime(heard))
        return PublishError(
            f"{row['id']}: nobody knows whether its driver on {away['machine']} has heard that it is to end: "
            f"{row['store_url']}, through which it is asked, does not answer. "
            f"At {at} the run was {row['state']}",
            "Look at the store and the network (AWS_ENDPOINT_URL, where it is set), then "
            f"`trainmaster cancel {row['id']}` once more. If that machine hears nothing of the store either, "
            f"its driver ends after {GIVES_UP_S:.0f} s, and all its machines with their leases. `trainmaster "
            "clusters` lists them: who ends them sooner where they are rented loses what is not saved.",
        )

    def take_back(self, run: str) -> bool:
        """Make a run this home's again if its driver is lost, or never began; else leave it.

        Returns:
            True if this call has done so: of several processes of a home one has.

        Raises:
            PublishError: the object store cannot be read or written.
        """
        self.look(run)
        row = self.home.database.run_row(run)
        if row["away"] is None:
            return False
        store = self._store(row)
        state = store.state()
        me = f"home {self.home.home.identity()}"
        if state is None and store.take(me):
            # Its machine has not begun, and cannot any more.
            words = f"{back()}: {self.where(run)} has not begun"
            is_back = run_transfer.come_back(self.home.database, run, row["away"], words)
            self._remove_login_later(row)
            return is_back
        silent_s = store.claimed_s_ago() if state is None else state.age_s
        # S3 tells whole seconds.
        return (silent_s >= self.lost_s or store.is_followed()) and self._take_back(run, store)

    def where(self, run: str) -> str:
        """Which machine drives a run; empty if it is not away."""
        away = self.home.database.run_row(run)["away"]
        return "" if away is None else str(json.loads(away)["machine"])

    # --- private ------------------------------------------------------------------------------------

    def _look_in_time(self, runs: Sequence[str], passing: type[TrainmasterError]) -> None:
        """Look at runs, all at once; those whose store stalls are looked at in the background from then on.

        Args:
            runs: their ids.
            passing: what is wrong then leaves them as they were; all else is raised.
        """
        faults: list[Exception] = []

        def look(run: str) -> None:
            try:
                self.look(run)
            except passing:
                pass
            except Exception as error:  # noqa: BLE001 - the caller gets it
                faults.append(error)

        looking = {
            run: threading.Thread(target=look, args=(run,), name=f"looks at {run}", daemon=True)
            for run in runs
        }
        for thread in looking.values():
            thread.start()
        until = time.monotonic() + self.answers_within_s
        for run, thread in looking.items():
            # One that is being taken back is waited for: then all of it is here.
            while thread.is_alive() and (run in self._coming or time.monotonic() < until):
                thread.join(_LOOKS_ANEW_S)
            if thread.is_alive():
                atexit.register(self._leave, run, thread)
        if faults:
            raise faults[0]

    def _follow(self, run: str) -> None:
        pause_s = FOLLOW_S
        while True:
            time.sleep(pause_s)
            with suppress(TrainmasterError):  # the store is away, or the database: what is shown stays
                self.look(run)
                row = self.home.database.run_row(run)
                if row["away"] is None:
                    self._followed.discard(run)
                    return
                pause_s = _LAST_S if row["state"] == State.DONE else FOLLOW_S

    def _leave(self, run: str, following: threading.Thread) -> None:
        """This process ends: a run that is being taken back is, and those are told who want to be."""
        if run in self._coming:
            following.join(_LEAVES_WITHIN_S)

    def _store(self, row: Mapping[Any, Any]) -> DriverStore:
        return DriverStore(row["store_url"], row["id"], json.loads(row["away"])["claim"])

    def _look(self, run: str, *, is_ours: bool = False) -> tuple[DriverStore, Published | None, bool] | None:
        """Bring it on, and whether we are to go on with it; None if it is not away.

        One that is ours has no driver any more. Until it is here, or somebody has gone on with one that is
        lost, it is not shown as undriven: who follows it would take it for left.
        """
        database = self.home.database
        for _ in range(_TRIES):
            row = database.run_row(run)
            if row["away"] is None:
                return None
            store = self._store(row)
            state = store.state()
            is_lost = is_ours or self._is_lost(row, store, state)
            if not is_lost:  # handed over again, or cut off for a while: a server lives long
                self._tries.pop(run, None)
            is_left = is_lost and not is_ours and self._goes_on(row)
            is_coming = is_ours and not (state is not None and state.is_over)
            if self._bring(row, store, state, is_alive=is_left or is_coming or not is_lost):
                return store, state, is_left
        raise ProviderError(f"{run} is brought here by another process all the time", "Try again.")

    def _is_lost(self, row: Mapping[Any, Any], store: DriverStore, state: Published | None) -> bool:
        if state is not None:
            return state.age_s >= self.lost_s
        if claimed_s_ago := store.claimed_s_ago():
            return claimed_s_ago >= self.lost_s
        handed_at = json.loads(row["away"]).get("at")  # the machine has not begun
        return handed_at is not None and self.home.database.clock_s() - handed_at >= _HANDS_OVER_S

    def _goes_on(self, row: Mapping[Any, Any]) -> bool:
        is_ours = row["home_id"] == self.home.home.identity()
        tries = self._tries.get(row["id"])
        is_due = tries is None or time.monotonic() >= tries.again_at
        return self.go_on is not None and is_ours and is_due

    def _bring(
        self, row: Mapping[Any, Any], store: DriverStore, state: Published | None, *, is_alive: bool
    ) -> bool:
        """Write what is new into the database; False if somebody else has done so."""
        database, run, before = self.home.database, row["id"], row["away"]
        away = {**json.loads(before), "lost": not is_alive}  # no look that fails changes that
        if state is None:
            return run_transfer.bring(database, run, before, away, (), None, is_alive=is_alive)
        for number in range(away["news"] + 1, state.news + 1):
            away["news"] = number
            news = [store.news(number)]
            if not run_transfer.bring(database, run, before, away, news, None, is_alive=is_alive):
                return False
            before = json.dumps(away)
        home = SealingKey.of(self.home.home.root, self.environ)
        rows = resealed(state.rows, key_of(home, run), home)
        return run_transfer.bring(database, run, before, away, (), rows, is_alive=is_alive)

    def _take_back(self, run: str, store: DriverStore) -> bool:
        """Claim it, so that its driver does nothing any more; bring the rest here unless others have."""
        self._coming.add(run)
        try:
            return self._bring_back(run, store)
        finally:
            self._coming.discard(run)

    def _bring_back(self, run: str, store: DriverStore) -> bool:
        me = f"home {self.home.home.identity()}"
        if not store.next().take(me):
            raise UsageError(f"{run} is driven by another machine", "Somebody has handed it over once more.")
        found = self._look(run, is_ours=True)  # it may have published something before it saw our claim
        row = self.home.database.run_row(run)
        if found is None or row["away"] is None:
            return False  # another process of this home was quicker
        is_over = row["state"] == State.DONE
        answers = {} if is_over else self._unheard_answers(run, store)
        wish = None if is_over else store.wished()
        if is_over:  # while it is away: if we are killed here, the next look at it does it again
            self._give_back(run)
        words = "" if is_over else f"{back()}: its driver on {self.where(run)} is gone"
        if is_over:
            self._remove_login(row)
        else:  # it is undriven until it is here, and a place may be slow
            self._remove_login_later(row)
        for experiment, said in answers.items():
            with suppress(UsageError):  # it was heard
                run_facts.answer(self.home.database, run, experiment, said)
        if wish is not None:  # its driver was lost before it heard or had done it; `resume` takes it back
            self.home.database.want_stop(run, EndReason(wish))
        is_back = run_transfer.come_back(self.home.database, run, row["away"], words)
        if is_back and is_over:
            self._give_back(run)  # another process may have brought their rows once more
            with suppress(TrainmasterError):
                deliver_left(self.home.database, run, self.environ)
            with suppress(TrainmasterError):
                store.remove()
        return is_back

    def _unheard_answers(self, run: str, store: DriverStore) -> dict[str, Approval]:
        """What people have said while it was away, also what its driver was lost before it heard."""
        waiting = [each["name"] for each in self.home.database.experiment_rows(run) if each["message"]]
        found = {name: store.answer(name) for name in waiting}
        return {name: said for name, said in found.items() if said is not None}

    def _remove_login(self, row: Mapping[Any, Any]) -> None:
        """That which was made for the machine that was to drive a run: it may be kept, or hang."""
        away = json.loads(row["away"])
        place = ProviderPlace(self.home.home.root, row["home_id"], self.environ)
        remove_login(row["provider"], place, away["cluster"], away["machine"])

    def _remove_login_later(self, row: Mapping[Any, Any]) -> None:
        removed = begun(lambda: self._remove_login(row), f"removes a login of {row['id']}")
        atexit.register(wait, [removed], _REMOVES_WITHIN_S)

    def _give_back(self, run: str) -> None:
        """Give back what is left of the machines of a run that is over."""
        from trainmaster.service.clusters import end_clusters

        opened = self.home
        rows = opened.database.living_clusters(None, opened.home.identity())
        gone = (ClusterState.ENDED, ClusterState.KEPT, ClusterState.PLANNED)
        left = [row["id"] for row in rows if row["run_id"] == run and row["state"] not in gone]
        with suppress(TrainmasterError):  # they end themselves, and `trainmaster clusters` shows them
            end_clusters(opened.database, opened.home, self.environ, left, lambda _: None)


def back() -> str:
    """For people: what drives a run that is its home's again."""
    return f"{socket.gethostname()} drives it from now on"
