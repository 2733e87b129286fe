"""What must hold of models, checkpoints and the budget, whatever befell a schedule; see `failures`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.artifacts import CheckpointSeries
from trainmaster.control.decide.budget import BOOTING_S, USUAL_LEASE_S
from trainmaster.control.decide.saving import NOT_REACHED
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.simulated_hazards import Hazard

if TYPE_CHECKING:
    from trainmaster.cluster.record import Machine
    from trainmaster.control.task.job_context import TaskContext
    from trainmaster.testing.failures import Failures
    from trainmaster.testing.simulated_cloud import Instance
    from trainmaster.testing.simulated_driver import SimulatedDriver


_CLOCKS: Final = frozenset({Hazard.CLOCK_BACK, Hazard.CLOCK_FORWARD})
_MISDATED_S: Final = 300.0


class Judge:
    """To break an invariant makes the schedule fail.

    Args:
        of: the schedule.
    """

    def __init__(self, of: Failures) -> None:
        self._of = of
        plan = of.plan
        self._is_quiet = not (plan.befalls or plan.late or plan.kill_after or plan.pause_after)

    def removal(self, context: TaskContext) -> None:
        """What an attempt left is removed from its nodes: it must be somewhere else."""
        name, task, number = context.experiment.name, context.task, context.attempt
        attempt = f"{self._of.run}/{name}/{task}/{number}"
        places = self._of.places.machines(attempt, {})
        machines = [self._of.cloud.instances[machine] for _, machine in places]
        if not places or any(one.ended_at is not None for one in machines):
            return  # it is gone anyway
        if any(one.cut_until > self._of.world.now - 60.0 for one in machines):
            return  # it is out of reach: nothing can be removed
        if NOT_REACHED in self._of.store.tasks[name, task]["message"] and self._of.plan.cap_usd is not None:
            return  # the cap wins, and it is told
        # A driver that loses a cluster's head before hearing of the end does not know that there is a model.
        closed = self._of.store.attempts.get((name, task, number), {}).get("reason")
        with self._of.objects.judged():
            was_lost = any(ray.is_lost and attempt in ray.won for ray in self._of.rays.values())
            if self._of.has_won(attempt) and closed is not EndReason.NODE_LOST and not was_lost:
                self._require_model(context, attempt)
            elif not self._is_stopped() and not self._of.has_won(attempt):
                self._require_checkpoint(context, attempt)

    def given_back(self, one: Instance) -> None:
        """A machine is given back: a finished model that was there is somewhere else, if there was money."""
        # A step here is long: that its machine slept for so long a driver cannot tell.
        silent_s = 60.0 + 2.5 * self._of.plan.pause_s
        if self._of.plan.cap_usd is not None:
            return
        for (name, task), row in self._of.store.tasks.items():
            attempt = f"{self._of.run}/{name}/{task}/{row['attempt']}"
            machines = [machine for _, machine in self._of.places.machines(attempt, {})]
            silent = [self._of.cloud.instances[each].cut_until for each in machines]
            if max(silent, default=0.0) > self._of.world.now - silent_s:
                continue  # what its members made together is not whole without the one that is out of reach
            if one.id in machines and self._of.has_won(attempt) and "fetched either" not in row["message"]:
                place = self._of.directory.attempt(self._of.run, name, task, row["attempt"]).output(
                    "", first=True
                )
                uri = self._of.directory.model_uri(self._of.run, name, task, row["attempt"])
                with self._of.objects.judged():
                    self._require(uri, place / "file", f"model of {attempt}")

    def _is_stopped(self) -> bool:
        return bool(self._of.store.run["stop_wanted"]) or self._of.store.run["state"] in (
            State.STOPPING,
            State.DONE,
        )

    def _require_model(self, context: TaskContext, attempt: str) -> None:
        here = context.place.output(context.members[0], first=True) / "file"
        self._require(context.model_uri, here, f"model of {attempt}")

    def _require(self, uri: str, here: Path, text: str) -> None:
        if self._of.objects.text(uri) != text and not (here.exists() and here.read_text() == text):
            self._of.world.fail(f"the {text} is removed from its nodes, and is nowhere else")

    def _require_checkpoint(self, context: TaskContext, attempt: str) -> None:
        if attempt not in self._of.started:
            return  # it was given up before its members ran: there is none
        text, here = self._of.left(f"{attempt}/checkpoint"), context.place.checkpoint / "file"
        if here.exists() and here.read_text() == text:
            return
        series = CheckpointSeries(context.checkpoints_uri, context.owner)
        newest = series.newest()
        found = "" if newest is None else self._of.objects.text(series.uri_of(newest)) or ""
        if found != text and not (text == f"checkpoint of {attempt}" and attempt in found):
            self._of.world.fail(
                f"the last checkpoint of {attempt} is removed from its nodes, and is nowhere else"
            )

    def faults(self) -> None:
        """A lost machine is not the user's fault; and where none was lost, what failed is the user's."""
        for (name, task, number), row in self._of.store.attempts.items():
            attempt = f"{self._of.run}/{name}/{task}/{number}"
            is_blameless = any(attempt in ray.blameless for ray in self._of.rays.values())
            if is_blameless and row["reason"] is EndReason.USER_ERROR:
                self._of.world.fail(f"{attempt} lost a machine, and is the user's error")
            if self._is_quiet and row["reason"] is EndReason.NODE_LOST:
                self._of.world.fail(f"{attempt} is called lost with its machines, which are well")

    def models(self) -> None:
        """Whoever is told that a task SUCCEEDED finds its own model."""
        for uri, later in self._of.later.items():
            if self._of.objects.text(uri) != later:
                self._of.world.fail(
                    f"{uri} was published by a later attempt, and a late driver has removed it"
                )
        for (name, task), row in self._of.store.tasks.items():
            if row["reason"] is EndReason.SUCCEEDED:
                attempt = f"{self._of.run}/{name}/{task}/{row['attempt']}"
                text = self._of.objects.text(str(row["model_uri"]))
                if text != f"model of {attempt}":
                    self._of.world.fail(f"{attempt} SUCCEEDED, but at its model there is {text!r}")
                continue
            attempt = f"{self._of.run}/{name}/{task}/{row['attempt']}"
            is_gone = "fetched either" in row["message"]
            if self._gave_up(row) and self._of.has_won(attempt) and not is_gone:
                self._of.world.fail(f"{attempt} ended well, and its model is given up: {row['message']}")
            if self._of.published.get((name, task)) and row["reason"] is not None:
                self._judge_checkpoints(name, task, row)

    def _gave_up(self, row: Mapping[str, Any]) -> bool:
        """Whether a task ended without being asked to, and there was money left to wait."""
        is_free = self._of.plan.cap_usd is None and self._of.store.run["reason"] is EndReason.INTERNAL
        return is_free and row["reason"] is EndReason.INTERNAL

    def _judge_checkpoints(self, name: str, task: int, row: Mapping[str, Any]) -> None:
        series = CheckpointSeries(
            self._of.directory.checkpoints_uri(self._of.run, name, task), self._of.owner
        )
        newest = series.newest()
        if newest is None or self._of.objects.text(series.uri_of(newest)) is None:
            self._of.world.fail(f"{name}/{task} had a good checkpoint, and has none: {row['reason']}")

    def wish(self, driver: SimulatedDriver, reason: EndReason) -> None:
        """The project itself wants the run to end: is that so?"""
        if reason in (EndReason.INTERNAL, EndReason.USER_ERROR) and any(
            loop.record.formed or loop.formation for loop in driver.loops
        ):
            self._of.world.fail(f"{driver.process.name} gives the run up though it had its machines")
        if reason is EndReason.BUDGET:
            self._judge_budget(driver)

    def unknown_usd(self) -> float:
        """What was billed of machines that ended unseen after somebody had set the driver's clock."""
        if not any(hazard in _CLOCKS for _, hazard, _ in self._of.plan.befalls):
            return 0.0
        machines = [machine for record in self._of.records() for machine in record.machines if machine.id]
        unseen = [machine for machine in machines if "knows nothing of it" in machine.reason]
        return sum(self._of.cloud.billed_usd(self._of.cloud.instances[machine.id]) for machine in unseen)

    def _is_misdated(self, machine: Machine) -> bool:
        """Whether its start, or until when it is billed, was written by a clock that was set."""
        if machine.started_at is None or not machine.id:
            return False
        wall = self._of.world.now + self._of.host.ahead_s
        if machine.ended_at is None and (machine.leased_until or 0.0) > wall + 2 * USUAL_LEASE_S:
            return True
        truly = self._of.cloud.instances[machine.id].started_at
        return abs(machine.started_at - self._of.host.ahead_s - truly) > _MISDATED_S

    def _judge_budget(self, driver: SimulatedDriver) -> None:
        """It ends for want of money: that must be near its end by the cloud's own bill."""
        cap_usd, meter = self._of.plan.cap_usd, driver.meter
        assert cap_usd is not None
        assert meter is not None
        machines = [machine for loop in driver.loops for machine in loop.record.live]
        if any(machine.started_at is None for machine in machines):
            return  # what was asked for may be there, which cannot be known
        if any(self._is_misdated(machine) for loop in driver.loops for machine in loop.record.machines):
            return  # by as much as the clock was set the bill is wrong, until the cloud has told
        bill_usd = self._of.cloud.bill_usd()
        live = max(len(list(self._of.cloud.live())), self._of.plan.cluster.nodes)
        # What it takes to end in order, at the dearest; and a minute of each machine that was ever rented.
        rest_s = meter.reserved_s + BOOTING_S + 60.0
        rest_usd = live * 2.6 * rest_s / 3600 + len(self._of.cloud.instances) * 2.6 / 60
        if 1.25 * bill_usd + rest_usd < 0.7 * cap_usd:
            self._of.world.fail(f"it ends for want of money after ${bill_usd:.3f} of ${cap_usd:.3f}")
