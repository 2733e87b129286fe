"""Pods that Kueue queues: the provider keeps its promises, and Kueue has its quota back. On a double."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from test_kubernetes_provider import KubernetesBench, _until

from trainmaster.providers.base import Node, NodeState
from trainmaster.providers.capabilities import BUILT_IN
from trainmaster.providers.kubernetes.provider import KubernetesProvider
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.testing.kueue_double import QUEUE, KueueDouble
from trainmaster.testing.provider_contract import ProviderContract

#: What two pods of the size `small` take.
TWO = 0.2


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KueueDouble]:
    """One for all tests of this file."""
    with KueueDouble() as double:
        yield double


class KueueBench(KubernetesBench):
    """The provider, with a queue in its settings."""

    def home(self, name: str, wait: str = "5m", more: str = "") -> KubernetesProvider:
        """See `KubernetesBench`."""
        return super().home(name, wait, more or f"queue: {QUEUE}\n")


@pytest.fixture
def bench(kubernetes: KueueDouble, tmp_path: Path) -> Iterator[KueueBench]:
    """A Kubernetes without pods of ours, and a quota for two."""
    made = KueueBench(kubernetes, tmp_path)
    kubernetes.quota_cpus = TWO
    yield made
    kubernetes.is_on, kubernetes.is_away, kubernetes.recovery_s = True, False, 1800.0
    made.later(10_000_000.0)
    for home in (made.provider(), made.neighbour()):
        home.reap([])
    _until(lambda: not kubernetes.workloads)


def in_state(provider: KubernetesProvider, cluster: str, *states: NodeState) -> list[Node]:
    """All machines of a cluster that have not ended, once each is in its state."""

    def look() -> list[Node]:
        there = [each for each in provider.nodes(cluster) if each.state is not NodeState.GONE]
        return there if sorted(each.state for each in there) == sorted(states) else []

    found: list[Node] = _until(look, 30.0)
    return found


def pair(provider: KubernetesProvider, bench: KueueBench) -> list[Node]:
    """A gang of two that was admitted, and has all of the quota."""
    provider.acquire("one", bench.request(count=2))
    return in_state(provider, "one", NodeState.READY, NodeState.READY)


class TestKueue(ProviderContract):
    """Every promise, of pods that are queued."""

    capabilities = BUILT_IN["kubernetes"]

    @pytest.fixture
    def bench(self, bench: KueueBench, kubernetes: KueueDouble) -> KueueBench:
        """See `ProviderContract`."""
        kubernetes.quota_cpus = 16.0
        return bench


def test_a_gang_waits_in_the_queue_as_a_whole(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """Without an end, and says so; what is given back makes room for it at once."""
    first, second = bench.provider(), bench.neighbour()
    first.acquire("one", bench.request(count=1))
    in_state(first, "one", NodeState.READY)
    both = (bench.request(token="a"), bench.request("ps", token="b"))
    second.acquire("two", replace(both[0], beside=(both[1],)))
    second.acquire("two", replace(both[1], beside=(both[0],)))
    waiting = in_state(second, "two", NodeState.STARTING, NodeState.STARTING)
    assert all(each.is_queued for each in waiting)
    said = _until(lambda: [each.reason for each in second.nodes("two") if "quota" in each.reason])
    assert re.fullmatch(
        f"it waits in queue {QUEUE} of Kueue: couldn't assign flavors .*100m more needed", said[0]
    )
    words = f"namespace research: 1 wait in queue {QUEUE} of Kueue"
    _until(lambda: words in {each.found for each in second.examine({})})
    first.release("one")
    in_state(second, "two", NodeState.READY, NodeState.READY)
    second.release("two")
    _until(lambda: not kubernetes.left() and kubernetes.used_cpus() == 0.0)


def test_what_is_given_back_before_it_was_admitted_is_gone(
    bench: KueueBench, kubernetes: KueueDouble
) -> None:
    """Kueue would keep such pods for ever."""
    bench.provider().acquire("one", bench.request(count=3))
    in_state(bench.provider(), "one", *[NodeState.STARTING] * 3)
    bench.provider().release("one")
    _until(lambda: not kubernetes.workloads)
    assert kubernetes.left() == []


def test_a_lost_pod_is_replaced_with_the_quota_that_it_had(
    bench: KueueBench, kubernetes: KueueDouble
) -> None:
    """All of the quota is the gang's: a group of its own would wait for ever, behind the gang itself."""
    provider = bench.provider()
    lost, kept = pair(provider, bench)
    kubernetes.fill(lost.id)
    (gone,) = _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.GONE])
    assert gone.id == lost.id
    for _ in range(2):  # as after a crash, the same token finds the same pod
        provider.acquire("one", bench.request(token="again"))
    there = in_state(bench.provider(), "one", NodeState.READY, NodeState.READY)
    assert kept.id in {each.id for each in there}
    assert len(kubernetes.workloads) == 1
    kubernetes.fill(kept.id)  # once more, and of the first ones none is left
    _until(lambda: kept.id not in {each.id for each in in_state(provider, "one", NodeState.READY)})
    provider.acquire("one", bench.request(token="third"))
    in_state(provider, "one", NodeState.READY, NodeState.READY)


def test_what_was_asked_for_too_early_takes_the_place_that_is_free(
    bench: KueueBench, kubernetes: KueueDouble
) -> None:
    """A pod that has time to go has its quota meanwhile: what is asked for then would wait for ever."""
    provider = bench.provider()
    leaves, _ = pair(provider, bench)
    kubernetes.evict(leaves.id)
    provider.acquire("one", bench.request(token="early"))
    told = _until(lambda: [each for each in provider.nodes("one") if "takes the place" in each.reason])
    assert told[0].state is NodeState.GONE
    provider.acquire("one", bench.request(token="again"))
    in_state(provider, "one", NodeState.READY, NodeState.READY)
    _until(lambda: len(kubernetes.workloads) == 1)


def test_what_is_deleted_while_its_gang_waits_is_replaced_in_the_gang(
    bench: KueueBench, kubernetes: KueueDouble
) -> None:
    """Alone it would have quota, and the rest of the gang would wait for ever."""
    neighbour, provider = bench.neighbour(), bench.provider()
    neighbour.acquire("two", bench.request())
    in_state(neighbour, "two", NodeState.READY)
    provider.acquire("one", bench.request(count=2))
    lost, _ = in_state(provider, "one", NodeState.STARTING, NodeState.STARTING)
    kubernetes.evict(lost.id)
    in_state(provider, "one", NodeState.STARTING)
    provider.acquire("one", bench.request(token="again"))
    in_state(provider, "one", NodeState.STARTING, NodeState.STARTING)
    neighbour.release("two")
    in_state(provider, "one", NodeState.READY, NodeState.READY)
    _until(lambda: len(kubernetes.workloads) == 1)


def test_a_pod_of_a_node_that_is_lost_leaves_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells that it has ended: Kueue would take it for one that runs, until the node comes back."""
    monkeypatch.setattr("trainmaster.testing.kubernetes_double._SILENT_S", 1.0)
    monkeypatch.setattr("trainmaster.providers.kubernetes.manifests._UNREACHED_S", 1)
    monkeypatch.setattr("trainmaster.providers.kubernetes.answers._GONE_S", 1.0)
    with KueueDouble(nodes=2, quota_cpus=TWO) as double:
        bench = KueueBench(double, tmp_path)
        provider = bench.provider()
        lost, kept = pair(provider, bench)
        double.kill(double.node_of(lost.id))
        _until(lambda: [each for each in provider.nodes("one") if each.state is NodeState.GONE], 30.0)
        provider.acquire("one", bench.request(token="again"))
        there = in_state(provider, "one", NodeState.READY, NodeState.READY)
        assert kept.id in {each.id for each in there}
        assert len(double.workloads) == 1
        provider.release("one")


def test_a_gang_that_is_lost_as_a_whole_queues_again(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """Its group is over, with its quota."""
    provider = bench.provider()
    for each in pair(provider, bench):
        kubernetes.fill(each.id)
    _until(lambda: all(each.state is NodeState.GONE for each in provider.nodes("one")))
    _until(lambda: kubernetes.used_cpus() == 0.0)
    provider.acquire("one", bench.request(count=2, token="again"))
    in_state(provider, "one", NodeState.READY, NodeState.READY)


def test_a_replacement_that_comes_too_late_is_gone(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """The others of its group have ended meanwhile: nothing would ever admit it."""
    provider = bench.provider()
    lost, kept = pair(provider, bench)
    kubernetes.fill(lost.id)
    _until(lambda: any(each.state is NodeState.GONE for each in provider.nodes("one")))
    before = provider._pods

    def ends_them(cluster: str = "") -> Any:
        seen = before(cluster)
        provider._pods = before  # type: ignore[method-assign]
        kubernetes.fill(kept.id)
        _until(lambda: kubernetes.used_cpus() == 0.0)
        return seen

    provider._pods = ends_them  # type: ignore[method-assign]
    (late,) = provider.acquire("one", bench.request(token="late"))
    told = _until(
        lambda: [
            each for each in provider.nodes("one") if each.id == late.id and each.state is NodeState.GONE
        ]
    )
    assert told[0].reason == "its group in Kueue was over before it came"


def test_pods_that_end_themselves_give_the_quota_back(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """Nobody is left who would delete them."""
    bench.provider().acquire("one", bench.request(count=2, lease_s=1.0))
    _until(lambda: kubernetes.used_cpus() > 0.0)
    _until(lambda: kubernetes.used_cpus() == 0.0, 60.0)


def test_a_part_is_given_back_and_the_rest_stays(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """Kueue would evict a gang that lacks a pod for half an hour."""
    kubernetes.recovery_s = 3.0
    provider = bench.provider()
    back, kept = pair(provider, bench)
    provider.release("one", [back.id])
    until = time.monotonic() + kubernetes.recovery_s + 3.0
    _until(lambda: in_state(provider, "one", NodeState.READY) and time.monotonic() > until)
    assert [each.id for each in in_state(provider, "one", NodeState.READY)] == [kept.id]
    provider.acquire("one", bench.request(token="again"))
    in_state(provider, "one", NodeState.READY, NodeState.READY)
    assert len(kubernetes.workloads) == 1


def test_a_preempted_gang_may_save_and_hears_why(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """Then it is asked for again."""
    provider = bench.provider()
    pair(provider, bench)
    kubernetes.preempt(*kubernetes.workloads)
    told = _until(
        lambda: [each for each in provider.nodes("one") if each.state in (NodeState.LEAVING, NodeState.GONE)]
    )
    assert told[0].reason.startswith("Preempted to accommodate a workload (UID: ")
    assert "due to prioritization in the ClusterQueue" in told[0].reason
    _until(lambda: all(each.state is NodeState.GONE for each in provider.nodes("one")))
    provider.acquire("one", bench.request(count=2, token="again"))
    in_state(provider, "one", NodeState.READY, NodeState.READY)
    _until(lambda: len(kubernetes.workloads) == 1)


def test_while_kueue_is_away_machines_are_seen_and_end(bench: KueueBench, kubernetes: KueueDouble) -> None:
    """Its webhook refuses every change of a pod: what it keeps is let go when it is back."""
    provider = bench.provider()
    gone, _ = pair(provider, bench)
    kubernetes.is_away = True
    kubernetes.evict(gone.id)
    in_state(provider, "one", NodeState.READY)
    with pytest.raises(ProviderError, match="failed calling webhook"):
        provider.release("one")
    assert kubernetes.left() == []
    kubernetes.is_away = False
    provider.release("one")
    _until(lambda: not kubernetes.workloads and kubernetes.used_cpus() == 0.0)


def test_what_would_not_be_queued_is_refused(
    bench: KueueBench, kubernetes: KueueDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do."""
    wrong = bench.home("home", more="queue: gpu\n")
    with pytest.raises(UsageError, match=f"has no queue gpu; it has {QUEUE}"):
        wrong.preflight([bench.request()])
    monkeypatch.setattr("trainmaster.providers.kubernetes.kueue.QUEUES", ("/apis/no/v1/namespaces/x/others",))
    assert [each for each in bench.provider().examine({}) if "has no queue gpus; it has none" in each.found]
    kubernetes.is_on = False
    monkeypatch.undo()
    with pytest.raises(UsageError, match="does not queue pods of namespace"):
        bench.provider().preflight([bench.request()])
