"""Mistakes that were once in the code, put back: the simulation must find each of them; see `failures`.

Each is as small as it can be: a patch around one function. A schedule that finds none of them tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from trainmaster.artifacts import AlreadyPublished, CheckpointSeries, checkpoints, delete, publishing
from trainmaster.artifacts.owner import Owner
from trainmaster.cluster import decide_cluster, decide_requests
from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.cluster.node_files import direct_store
from trainmaster.cluster.observed import ObservedCluster
from trainmaster.cluster.record import Machine
from trainmaster.control.attempt import saving, staging, unpublished_checkpoint
from trainmaster.control.decide import outcome
from trainmaster.control.decide import saving as decide_saving
from trainmaster.control.decide import task as decide_task
from trainmaster.control.decide.budget import Meter
from trainmaster.control.loop.controller import Controller
from trainmaster.control.task.layout import Home
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import GangStatus
from trainmaster.objects.errors import StoreTrouble, trouble_of
from trainmaster.providers.aws import provider as aws
from trainmaster.providers.aws.requests import AwsRequest, AwsRequestBuilder
from trainmaster.spec import processes
from trainmaster.testing import failures, simulated_saving
from trainmaster.testing.simulated_hazards import Hazard
from trainmaster.testing.simulated_host import SimulatedProcess, working
from trainmaster.transport.http_calls import ProviderClock
from trainmaster.volumes.packed import releasing
from trainmaster.volumes.packed.deletions import Deletions

Hazards = Mapping[Hazard, int]


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One mistake.

    Attributes:
        back: puts it into the code for as long as the body runs.
        words: what the old code did.
        hazards: that bring it to light, with weights: so that it is found soon.
    """

    back: Callable[[], AbstractContextManager[object]]
    words: str
    hazards: Hazards = field(default_factory=dict)


@contextmanager
def _leases_need_the_provider() -> Iterator[None]:
    take = ObservedCluster.take

    def forgetful(self: ObservedCluster, cluster: str, name: str, result: object, now: float) -> None:
        take(self, cluster, name, result, now)
        if name == "look" and isinstance(result, Exception):
            self.nodes = {}

    with (
        patch.object(ObservedCluster, "take", forgetful),
        patch.object(ClusterLoop, "_remembered", lambda _: {}),
    ):
        yield


@contextmanager
def _credentials_are_fatal() -> Iterator[None]:
    take = decide_requests.take_answers

    def strict(decision: Any, seen: Any, now: float) -> None:  # noqa: ANN401
        take(decision, seen, now)
        final = [refusal for refusal in seen.refusals.values() if refusal.is_final]
        if final:
            decision.fatal = final[0].reason

    with patch.object(decide_cluster, "take_answers", strict):
        yield


def _intervals_by_the_wall_clock() -> AbstractContextManager[object]:
    return patch.object(SimulatedProcess, "steady", lambda self: self.host.wall())


def _stated_times_are_not_translated() -> AbstractContextManager[object]:
    return patch.object(ProviderClock, "heard", lambda *_, **__: None)


@contextmanager
def _machines_are_judged_by_stated_times() -> Iterator[None]:
    why_over = decide_cluster._why_over

    def stated(machine: Machine, node: Any, seen: Any, now: float, patience: Any) -> Any:  # noqa: ANN401
        since = {machine.id: machine.started_at or now}
        return why_over(machine, node, replace(seen, known_since=since), now, patience)

    with _stated_times_are_not_translated(), patch.object(decide_cluster, "_why_over", stated):
        yield


def _reap_whatever_is_leased() -> AbstractContextManager[object]:
    return patch.object(aws, "leased_until", lambda _: 0.0)


def _owners_without_namespace() -> AbstractContextManager[object]:
    return patch.object(processes, "process_space", lambda: f"boot-of-{working().host.name} ns")


@contextmanager
def _sleep_is_billed() -> Iterator[None]:
    """Two guards: a driver that wakes up asks before deciding, and time after a lease is not counted."""
    started, wake = Machine._started_at_most, ClusterLoop._notice_sleep

    def hasty(self: ClusterLoop, now: float) -> None:
        wake(self, now)
        self._decide_at = 0.0

    with (
        patch.object(Machine, "_started_at_most", lambda self, now, end, _: started(self, now, end, None)),
        patch.object(ClusterLoop, "_notice_sleep", hasty),
    ):
        yield


@contextmanager
def _no_highest_price() -> Iterator[None]:
    run = AwsRequestBuilder.run

    def unbounded(self: AwsRequestBuilder, *arguments: Any) -> AwsRequest:  # noqa: ANN401
        request = run(self, *arguments)
        parameters: dict[str, Any] = dict(request.parameters)
        if "InstanceMarketOptions" in parameters:
            options = dict(parameters["InstanceMarketOptions"]["SpotOptions"])
            options.pop("MaxPrice", None)
            parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return replace(request, parameters=parameters)

    with patch.object(AwsRequestBuilder, "run", unbounded):
        yield


def _leases_longer_than_the_money() -> AbstractContextManager[object]:
    return patch.object(Meter, "lease_s", lambda self, _: self.usual_lease_s)


def _only_outages_are_waited_for() -> AbstractContextManager[object]:
    def lasting(error: Exception) -> bool:
        return trouble_of(error) is not StoreTrouble.UNREACHABLE

    return patch.object(saving, "is_lasting", lasting)


@contextmanager
def _patience_of_a_quarter() -> Iterator[None]:
    again = decide_saving._again

    def impatient(task: Any, kind: Any, job: Any, seen: Any, now: float) -> Any:  # noqa: ANN401
        if now - (seen.gang.ended_at or now) > _FORMER_PATIENCE_S:
            return replace(job, unsaved=False)
        return again(task, kind, job, seen, now)

    with patch.object(decide_saving, "_again", impatient):
        yield


@contextmanager
def _checkpoints_are_not_waited_for() -> Iterator[None]:
    recover = saving.recover
    hasty = patch.object(saving, "recover", lambda context: replace(recover(context), unsaved=False))
    with hasty, _only_what_is_recorded_is_used():
        yield


@contextmanager
def _one_place_for_all_attempts() -> Iterator[None]:
    place = Home.model_uri

    def at_once(uri: str, make: Any, *, attempt: int, owner: Any) -> Any:  # noqa: ANN401
        try:
            return make()
        except AlreadyPublished as error:
            if error.manifest.extra.get("attempt") == attempt:
                return error.manifest
            delete(uri)
            return make()

    with ExitStack() as stack:
        stack.enter_context(
            patch.object(Home, "model_uri", lambda self, run, name, task, _=1: place(self, run, name, task))
        )
        for module in (direct_store, simulated_saving):
            stack.enter_context(patch.object(module, "publish_model", at_once))
        stack.enter_context(patch.object(saving, "publish_once", at_once))
        yield


@contextmanager
def _names_are_not_compared() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(failures, "claim", lambda *_: True))
        stack.enter_context(patch.object(Owner, "require", lambda *_: None))
        stack.enter_context(patch.object(Owner, "owns", lambda *_: True))
        yield


@contextmanager
def _manifests_are_believed() -> Iterator[None]:
    def clear(self: CheckpointSeries) -> None:
        taken = self._last_taken()
        for number in self._numbers():
            if number > taken:
                delete(self.uri_of(number))

    with ExitStack() as stack:
        for module in (publishing, checkpoints):
            stack.enter_context(patch.object(module, "require_whole", lambda *_: None))
        stack.enter_context(patch.object(CheckpointSeries, "clear_unfinished", clear))
        yield


@contextmanager
def _what_was_fetched_is_forgotten() -> Iterator[None]:
    with patch.object(saving, "was_fetched", lambda _: False), _only_what_is_recorded_is_used():
        yield


def _only_what_is_recorded_is_used() -> AbstractContextManager[object]:
    """Today whatever lies here is begun with, which makes up for other mistakes."""
    lies_here = unpublished_checkpoint.lies_here
    return patch.object(
        staging,
        "lies_here",
        lambda context, attempt: context.kept_checkpoint == attempt and lies_here(context, attempt),
    )


@contextmanager
def _collections_take_what_is_pushed_again() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(Deletions, "generation", lambda *_: 0))
        stack.enter_context(patch.object(releasing.VersionRelease, "_check_names", lambda *_: None))
        yield


@contextmanager
def _adopting_is_silent() -> Iterator[None]:
    find = Controller._find

    def silent(self: Controller, attempts: list[str]) -> None:
        watcher, self.watcher = self.watcher, None
        find(self, attempts)
        self.watcher = watcher

    with patch.object(Controller, "_find", silent):
        yield


@contextmanager
def _failures_before_losses() -> Iterator[None]:
    judge = outcome.classify

    def former(gang: GangStatus, *policy: Any, **more: Any) -> outcome.Outcome:  # noqa: ANN401
        return judge(replace(gang, addresses={}, lost_nodes=()), *policy, **more)

    with ExitStack() as stack:
        stack.enter_context(patch.object(decide_task, "classify", former))
        stack.enter_context(patch.object(decide_saving, "classify", former))
        stack.enter_context(_machines_are_not_asked())
        yield


def _machines_are_not_asked() -> AbstractContextManager[object]:
    return patch.object(ClusterExecutor, "_judged", lambda _, status: status)


#: For so long a store that was away was waited for.
_FORMER_PATIENCE_S: Final = 843.0
_CLOUD: Final = {Hazard.API_AWAY: 1, Hazard.API_THROTTLED: 1, Hazard.KEYS_EXPIRED: 1}

SABOTAGES: Final[Mapping[str, Sabotage]] = {
    "leases-need-the-provider": Sabotage(
        _leases_need_the_provider, "machines are only renewed while the provider's API answers", _CLOUD
    ),
    "credentials-are-fatal": Sabotage(
        _credentials_are_fatal,
        "expired credentials end a run whose other machines are well",
        {Hazard.KEYS_EXPIRED: 2, Hazard.LOSE_MACHINE: 2, Hazard.PREEMPT: 1},
    ),
    "intervals-by-the-wall-clock": Sabotage(
        _intervals_by_the_wall_clock, "a clock that is set back stops renewals", {Hazard.CLOCK_BACK: 1}
    ),
    "stated-times-are-not-translated": Sabotage(
        _stated_times_are_not_translated,
        "a driver whose clock is an hour ahead takes machines for an hour older",
        {Hazard.KILL: 1},
    ),
    "machines-are-judged-by-stated-times": Sabotage(
        _machines_are_judged_by_stated_times,
        "a driver whose clock is an hour ahead gives each machine back that it has just rented",
        {Hazard.KILL: 1},
    ),
    "reap-whatever-is-leased": Sabotage(
        _reap_whatever_is_leased,
        "a copy of the home ends machines of a run that goes on",
        {Hazard.COPIED_HOME: 1},
    ),
    "owners-without-namespace": Sabotage(
        _owners_without_namespace,
        "a process in another container takes the run from its living driver",
        {Hazard.SECOND_DRIVER: 1},
    ),
    "sleep-is-billed": Sabotage(
        _sleep_is_billed, "a laptop that slept ends its run for want of money", {Hazard.SUSPEND: 1}
    ),
    "no-highest-price": Sabotage(
        _no_highest_price, "spot machines cost whatever the market asks", {Hazard.MARKET: 1}
    ),
    "leases-longer-than-the-money": Sabotage(
        _leases_longer_than_the_money,
        "machines of a driver that was killed live beyond the cap",
        {Hazard.KILL: 1},
    ),
    "only-outages-are-waited-for": Sabotage(
        _only_outages_are_waited_for,
        "a model that is refused for expired credentials is given up",
        {Hazard.KEYS_EXPIRED: 1},
    ),
    "patience-of-a-quarter": Sabotage(
        _patience_of_a_quarter,
        "a model whose store is away for a quarter of an hour is given up",
        {Hazard.STORE_AWAY: 1},
    ),
    "checkpoints-are-not-waited-for": Sabotage(
        _checkpoints_are_not_waited_for,
        "the last checkpoint is removed from healthy nodes while its store is away",
        {Hazard.STORE_AWAY: 3, Hazard.PREEMPT: 1},
    ),
    "what-was-fetched-is-forgotten": Sabotage(
        _what_was_fetched_is_forgotten,
        "a checkpoint that came here as its store was away is not used once its machine is lost",
        {Hazard.STORE_AWAY: 3, Hazard.LOSE_MACHINE: 2},
    ),
    "one-place-for-all-attempts": Sabotage(
        _one_place_for_all_attempts,
        "a late driver's save of an attempt removes the model of a later one",
        {Hazard.LATE_SAVE: 1},
    ),
    "names-are-not-compared": Sabotage(
        _names_are_not_compared,
        "two homes on one store whose runs have the same id take each other's models",
        {Hazard.SECOND_HOME: 1},
    ),
    "manifests-are-believed": Sabotage(
        _manifests_are_believed,
        "a checkpoint whose files were removed counts as complete",
        {Hazard.LATE_COMMIT: 1},
    ),
    "collections-take-what-is-pushed-again": Sabotage(
        _collections_take_what_is_pushed_again,
        "a collection that was halted deletes what a version that was pushed meanwhile is made of",
        {Hazard.COLLECTION: 1},
    ),
    "failures-before-losses": Sabotage(
        _failures_before_losses,
        "members that fail because a peer's machine was lost are called the user's error",
        {Hazard.LOSE_MACHINE: 2},
    ),
    "machines-are-not-asked": Sabotage(
        _machines_are_not_asked,
        "processes that a machine ends as it is switched off are called the user's error",
        {Hazard.LOSE_MACHINE: 2},
    ),
    "adopting-is-silent": Sabotage(
        _adopting_is_silent,
        "that a machine was lost is not told while the next driver looks for those of the one before",
        {Hazard.KILL: 1, Hazard.LOSE_MACHINE: 2},
    ),
}


def found_after(name: str, most: int, first: int = 0) -> int | None:
    """Put a mistake back, and count the schedules until it is found.

    Args:
        name: of a sabotage; see `SABOTAGES`.
        most: the schedule before which it is given up.
        first: the one that is tried first.

    Returns:
        The number; None if it was not found.
    """
    sabotage = SABOTAGES[name]
    for seed in range(first, most):
        with sabotage.back():
            is_found = bool(failures.simulate([seed], sabotage.hazards).failures)
        # What fails without it too tells nothing.
        if is_found and not failures.simulate([seed], sabotage.hazards).failures:
            return seed + 1
    return None
