"""What every provider that rents must keep: inherit `ProviderContract` and give it a ``bench`` fixture."""

# ruff: noqa: S106 - the token of a request is no secret

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

from trainmaster.providers.base import NoCapacityError, Node, NodeRequest, NodeState, Provider
from trainmaster.providers.capabilities import BUILT_IN, Capabilities
from trainmaster.providers.examining import examined
from trainmaster.spec.errors import TrainmasterError, UsageError

HOUR_S = 3600.0
_REFERENCE = re.compile(r"\$\{[a-z]+\.[A-Za-z]+\}")


class ProviderBench(Protocol):
    """A cloud to test a provider on, or what stands in for one."""

    def provider(self) -> Provider:
        """A new object for the same home, as after a crash."""

    def neighbour(self) -> Provider:
        """The same cloud and account, from another home."""

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:  # noqa: ANN401 - fields of any type
        """Machines that the cloud has."""

    def sent(self) -> list[dict[str, Any]]:
        """What has reached the cloud since this was asked last, in the shape of `Provider.dry_run`."""

    def changed(self) -> list[str]:
        """Operations among those, since it was asked last, that make, change or remove anything."""

    def without_capacity(self) -> AbstractContextManager[None]:
        """As long as it lasts, there are no machines anywhere."""

    def without_permission(self) -> AbstractContextManager[None]:
        """As long as it lasts, the account must not rent."""

    def later(self, seconds: float) -> None:
        """Have so much time pass for what judges leases, though nothing ends itself meanwhile."""

    def left(self) -> list[str]:
        """Everything of either home that is still there: machines, and what was made for them."""


def alive(provider: Provider, cluster: str) -> set[str]:
    """The machines of a cluster that cost money."""
    return {node.id for node in provider.nodes(cluster) if node.state is not NodeState.GONE}


def same_request(shown: Any, sent: Any) -> bool:  # noqa: ANN401 - parameters of any shape
    """Whether what a dry run shows is what was sent; a reference stands for any text.

    >>> same_request({"GroupId": "${group.GroupId}", "MinCount": 1}, {"GroupId": "sg-1", "MinCount": 1})
    True
    """
    if isinstance(shown, Mapping) and isinstance(sent, Mapping):
        return shown.keys() == sent.keys() and all(same_request(shown[key], sent[key]) for key in shown)
    if isinstance(shown, list | tuple) and isinstance(sent, list | tuple):
        return len(shown) == len(sent) and all(map(same_request, shown, sent))
    if isinstance(shown, str) and isinstance(sent, str):
        parts = [re.escape(part) for part in _REFERENCE.split(shown)]
        return re.fullmatch("[^ ]+".join(parts), sent) is not None
    return bool(shown == sent)


class ProviderContract:
    """Inherited by the tests of each provider, ours and plug-ins'.

    Attributes:
        capabilities: what the provider states; see `trainmaster.providers.capabilities`.
    """

    capabilities = Capabilities()

    @pytest.fixture
    def bench(self) -> ProviderBench:
        """The cloud under the provider."""
        raise NotImplementedError("give your tests a `bench` fixture")

    def test_it_has_a_name(self, bench: ProviderBench) -> None:
        """Recipes use it."""
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", bench.provider().name)

    def test_it_is_what_it_says(self, bench: ProviderBench) -> None:
        """Known by its name if it is built in; its machines are rented, billed and reached as it says."""
        provider, can = bench.provider(), self.capabilities
        assert BUILT_IN.get(provider.name, can) == can
        assert not can.is_here, "this machine needs no provider"
        for node in provider.acquire("one", bench.request(token="t1", spot=can.spot)):
            assert node.is_rented == can.rents
            assert node.spot <= can.spot
            assert bool(node.started_at) <= can.costs

    def test_what_can_be_used_is_not_refused(self, bench: ProviderBench) -> None:
        """Neither its settings nor whether it answers; and it may be closed twice, and used again."""
        provider = bench.provider()
        for _ in range(2):
            provider.check_settings()
            provider.check_up()
            provider.close()

    def test_what_was_asked_for_comes(self, bench: ProviderBench) -> None:
        """As many as were asked for, in their role, and `nodes` knows the same ones."""
        provider = bench.provider()
        rented = provider.acquire("one", bench.request(count=2, token="t1", labels={"rack": "7"}))
        assert len({node.id for node in rented}) == 2
        for node in rented:
            self.check(node, "one", "worker")
            assert node.labels.get("rack") == "7"
        assert alive(provider, "one") == {node.id for node in rented}
        assert alive(provider, "two") == set()

    def test_the_same_token_gives_the_same_machines(self, bench: ProviderBench) -> None:
        """However often, and whichever process asks: nothing is paid twice."""
        provider = bench.provider()
        request = bench.request(count=2, token="t1")
        first = {node.id for node in provider.acquire("one", request)}
        assert {node.id for node in provider.acquire("one", request)} == first
        assert {node.id for node in bench.provider().acquire("one", request)} == first
        assert alive(bench.provider(), "one") == first

    def test_another_token_gives_others(self, bench: ProviderBench) -> None:
        """A replacement is not what it replaces; nor are two roles one machine."""
        provider = bench.provider()
        a = {node.id for node in provider.acquire("one", bench.request(token="t1"))}
        b = {node.id for node in provider.acquire("one", bench.request(token="t2"))}
        c = {node.id for node in provider.acquire("one", bench.request(role="ps", token="t3"))}
        assert len(a | b | c) == 3
        assert alive(provider, "one") == a | b | c
        assert {node.role for node in provider.nodes("one")} == {"worker", "ps"}

    def test_all_or_none(self, bench: ProviderBench) -> None:
        """Without capacity nothing runs, and the error says where it was looked for; later it may work."""
        provider = bench.provider()
        request = bench.request(count=3, token="t1")
        with bench.without_capacity(), pytest.raises(NoCapacityError) as caught:
            provider.acquire("one", request)
        assert caught.value.zones
        assert alive(provider, "one") == set()
        assert len(provider.acquire("one", request)) == 3

    def test_release_twice(self, bench: ProviderBench) -> None:
        """Some, then all, then again; what is gone is GONE, and nothing is left over."""
        provider = bench.provider()
        rented = [node.id for node in provider.acquire("one", bench.request(count=3, token="t1"))]
        other = alive_after = {node.id for node in provider.acquire("two", bench.request(token="t1"))}
        provider.release("one", rented[:1])
        assert alive(provider, "one") == set(rented[1:])
        provider.release("one", [*rented[:1], *other, "nobody-knows-it"])
        assert alive(provider, "one") == set(rented[1:])
        assert alive(provider, "two") == alive_after, "not of this cluster"
        for _ in range(2):
            bench.provider().release("one")
            assert alive(provider, "one") == set()
        assert {node.state for node in provider.nodes("one")} <= {NodeState.GONE}
        assert not any(node.leaves_at for node in provider.nodes("one"))
        provider.release("two")
        assert bench.left() == []

    def test_a_cluster_that_never_was(self, bench: ProviderBench) -> None:
        """Nothing is nothing, not an error."""
        provider = bench.provider()
        assert provider.nodes("none") == []
        provider.release("none")
        provider.renew("none", 60.0)
        assert provider.reap([]) == []

    def test_the_console_of_a_machine_is_text(self, bench: ProviderBench) -> None:
        """Also of one that was given back, and of one that never was, where it keeps consoles at all."""
        if not self.capabilities.console:
            return
        provider = bench.provider()
        (node,) = provider.acquire("one", bench.request(token="t1"))
        assert isinstance(provider.console("one", node.id), str)
        provider.release("one", [node.id])
        assert isinstance(provider.console("one", node.id), str)
        assert provider.console("one", f"{node.id[:-1]}{'0' if node.id[-1] != '0' else '1'}") == ""
        provider.release("one")

    def test_reap_ends_what_is_ours_and_unknown(self, bench: ProviderBench) -> None:
        """Not what is known, and never another home's."""
        provider, neighbour = bench.provider(), bench.neighbour()
        known = {node.id for node in provider.acquire("known", bench.request(token="t1"))}
        lost = {node.id for node in provider.acquire("lost", bench.request(count=2, token="t1"))}
        others = {node.id for node in neighbour.acquire("lost", bench.request(token="t1"))}
        provider.renew("known", 3 * HOUR_S)
        neighbour.renew("lost", 3 * HOUR_S)
        bench.later(HOUR_S)
        assert set(bench.provider().reap(["known"])) == lost
        assert alive(provider, "lost") == set()
        assert alive(provider, "known") == known
        assert alive(neighbour, "lost") == others
        assert bench.provider().reap(["known"]) == []
        bench.later(3 * HOUR_S)
        assert set(provider.reap([])) == known
        assert set(neighbour.reap([])) == others
        provider.reap([])
        neighbour.reap([])
        assert bench.left() == []

    def test_reap_ends_nothing_whose_lease_is_not_over(self, bench: ProviderBench) -> None:
        """A driver with a copy of a home does not know what the home has rented since."""
        provider, copy = bench.provider(), bench.provider()
        new = {node.id for node in provider.acquire("new", bench.request(lease_s=1800.0))}
        renewed = {node.id for node in provider.acquire("renewed", bench.request(lease_s=1800.0))}
        assert copy.reap([]) == []
        provider.renew("renewed", 5 * HOUR_S)
        bench.later(HOUR_S)
        assert set(copy.reap([])) == new
        assert alive(provider, "renewed") == renewed
        provider.release("renewed")
        provider.release("new")
        assert bench.left() == []

    def test_a_dry_run_shows_what_is_sent(self, bench: ProviderBench) -> None:
        """Request by request, in order; and the dry run itself sends nothing."""
        provider = bench.provider()
        requests = [
            bench.request(count=2, spot=self.capabilities.spot, token="t1", labels={"rack": "7"}),
            bench.request(role="ps", token="t2"),
        ]
        bench.sent()
        shown = provider.dry_run("one", requests)
        assert shown
        assert bench.sent() == []
        assert bench.left() == []
        for request in requests:
            provider.acquire("one", request)
        sent = bench.sent()
        assert [entry["operation"] for entry in shown] == [entry["operation"] for entry in sent]
        for shows, was_sent in zip(shown, sent, strict=True):
            assert same_request(shows, was_sent), f"{shows}\n{was_sent}"

    def test_preflight_changes_nothing(self, bench: ProviderBench) -> None:
        """It gives notes, sentences, and makes nothing."""
        requests = [bench.request(), bench.request(role="ps", spot=self.capabilities.spot)]
        notes = bench.provider().preflight(requests)
        assert all(isinstance(note, str) and note for note in notes)
        assert bench.changed() == []
        assert bench.left() == []

    def test_preflight_refuses_before_anything_is_made(self, bench: ProviderBench) -> None:
        """A missing permission is the user's business, and found first."""
        with bench.without_permission(), pytest.raises(UsageError) as caught:
            bench.provider().preflight([bench.request()])
        assert caught.value.hint
        assert bench.changed() == []
        assert bench.left() == []

    @pytest.mark.parametrize("changes", [{"instance_type": "no.such"}, {"count": 0}], ids=["type", "count"])
    def test_preflight_knows_what_there_is(self, bench: ProviderBench, changes: dict[str, Any]) -> None:
        """A type that does not exist, or no machines."""
        with pytest.raises(TrainmasterError):
            bench.provider().preflight([bench.request(**changes)])
        assert bench.changed() == []

    def test_a_doctor_has_no_objection(self, bench: ProviderBench) -> None:
        """Nothing is wrong with what works, and to look changes nothing, nor does it raise."""
        found = examined(bench.provider(), {"torch": "12.4"})
        assert found
        assert not [each for each in found if not each.ok]
        with bench.without_permission():
            found = examined(bench.provider(), {})
        assert all(each.what and each.found and (each.ok or each.advice) for each in found)
        assert bench.changed() == []
        assert bench.left() == []

    def test_renew_keeps_them(self, bench: ProviderBench) -> None:
        """It may be called any time, and ends nothing."""
        provider = bench.provider()
        rented = {node.id for node in provider.acquire("one", bench.request(count=2, token="t1"))}
        provider.renew("one", 600.0)
        provider.renew("one", 600.0)
        assert alive(provider, "one") == rented

    def check(self, node: Node, cluster: str, role: str) -> None:
        """A machine says all that there is to say."""
        assert node.id
        assert (node.cluster, node.role) == (cluster, role)
        assert node.state in (NodeState.STARTING, NodeState.READY)
        assert node.user
        assert node.leaves_at is None
        assert node.ended_at is None
