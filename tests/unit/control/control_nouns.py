"""Short ways to say what tests of the decisions need."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainmaster.control.decide.task import EffectKind, Job, ObservedTask
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.spec.states import EndReason, State

NOW = 1_000_000.0


def member(name: str = "worker-0", **what) -> MemberStatus:
    return MemberStatus(name, 7, NOW - 10, NOW - 1, **what)


def gang(phase: Phase = Phase.UNKNOWN, *members: MemberStatus, seconds: float = 10) -> GangStatus:
    ran = phase in (Phase.RUNNING, Phase.EXITED)
    return GangStatus(
        "r/e/0/1",
        phase,
        members,
        started_at=NOW - seconds if ran else None,
        ended_at=NOW if phase is Phase.EXITED else None,
    )


def exited(*members: MemberStatus, seconds: float = 10) -> GangStatus:
    return gang(Phase.EXITED, *(members or (member(exit_code=0),)), seconds=seconds)


def seen(
    status: GangStatus | None = None,
    jobs: Mapping[EffectKind, Job] | None = None,
    *,
    wanted: EndReason | None = None,
    hurry: bool = False,
    launched: bool = False,
    running_since: float | None = None,
    last_checkpoint_at: float = NOW,
    is_wait_over: bool = False,
    left_s: float = math.inf,
    is_store_silent: bool = False,
) -> ObservedTask:
    return ObservedTask(
        status or gang(),
        jobs or {},
        wanted,
        hurry,
        launched,
        running_since,
        last_checkpoint_at,
        is_wait_over=is_wait_over,
        left_s=left_s,
        is_store_silent=is_store_silent,
    )


def task(state: State, attempt: int = 1, **what) -> Task:
    return Task("e", 0, state, attempt=attempt, **what)


def run_state(*experiments: ExperimentState) -> RunState:
    return RunState("r", {experiment.name: experiment for experiment in experiments})


def experiment(name: str = "e", total: int = 1, window: int = 4, after: tuple[str, ...] = (), **what):
    return ExperimentState(name, after, total, window, **what)
