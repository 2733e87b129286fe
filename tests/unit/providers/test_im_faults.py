"""What goes wrong between us and Infrastructure Manager: nothing is made twice or lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from im_double import NO_HOST, SECRET, ImBench

from trainmaster.providers.base import NoCapacityError, NodeState
from trainmaster.providers.im.client import ImClient
from trainmaster.providers.im.errors import explained
from trainmaster.providers.im.radl import InfrastructureOwner
from trainmaster.spec.errors import ProviderError, UsageError


@pytest.fixture
def bench(tmp_path: Path) -> ImBench:
    return ImBench(tmp_path)


def states(bench: ImBench, cluster: str = "one") -> list[NodeState]:
    return [node.state for node in bench.provider().nodes(cluster)]


@pytest.mark.parametrize(
    ("trouble", "words"), [("", "does not answer"), ("database is locked", "has trouble: database is locked")]
)
def test_the_answer_to_a_create_is_lost_and_found_again(bench: ImBench, trouble: str, words: str) -> None:
    bench.im.loses.append("POST /infrastructures?async")
    bench.im.breaks = trouble
    with pytest.raises(ProviderError, match=words):
        bench.provider().acquire("one", bench.request(count=2))
    assert len(bench.left()) == 1
    assert len(bench.provider().acquire("one", bench.request(count=2))) == 2
    assert len(bench.left()) == 1


def test_a_driver_that_dies_after_a_lost_answer_leaves_nothing(bench: ImBench) -> None:
    """Given back by the next one, or by what reaps when nobody wants it any more."""
    bench.im.loses.append("POST /infrastructures?async")
    with pytest.raises(ProviderError):
        bench.provider().acquire("one", bench.request())
    bench.provider().release("one")
    assert bench.left() == []
    bench.im.loses.append("POST /infrastructures?async")
    with pytest.raises(ProviderError):
        bench.provider().acquire("two", bench.request())
    assert bench.provider().reap([]) == []
    bench.later(3600)
    assert len(bench.provider().reap([])) == 1
    assert bench.left() == []


@pytest.mark.parametrize("trouble", ["", "database is locked"])
def test_the_answer_to_an_addition_is_lost(bench: ImBench, trouble: str) -> None:
    bench.provider().acquire("one", bench.request())
    bench.im.breaks = trouble
    bench.im.loses.append("context=0")
    with pytest.raises(ProviderError):
        bench.provider().acquire("one", bench.request("ps", count=2))
    again = bench.provider().acquire("one", bench.request("ps", count=2))
    assert len(again) == 2
    assert {node.role for node in again} == {"ps"}
    assert len(bench.provider().nodes("one")) == 3


def test_infrastructure_manager_is_away_before_it_is_asked(bench: ImBench) -> None:
    bench.im.away = True
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request())
    with pytest.raises(ProviderError):
        bench.provider().check_up()
    bench.im.away = False
    assert len(bench.provider().acquire("one", bench.request())) == 1
    assert len(bench.left()) == 1


def test_who_does_not_answer_is_told_in_words(bench: ImBench) -> None:
    """Not in those of the library that carries requests."""
    client = ImClient("http://127.0.0.1:1", bench.credentials)
    with pytest.raises(ProviderError) as caught:
        client.version()
    assert caught.value.args[0].endswith(" does not answer at http://127.0.0.1:1: Connection refused")


def test_pending_without_machines_is_not_all_of_none(bench: ImBench) -> None:
    bench.im.slow = 5
    assert len(bench.provider().acquire("one", bench.request(count=3))) == 3


def test_machines_that_do_not_come_are_waited_for_by_the_next_call(bench: ImBench) -> None:
    """As the first one must not keep a `release` waiting for ever."""
    bench.im.slow = 200
    with pytest.raises(ProviderError, match="0 of 2 machines in west so far"):
        bench.provider().acquire("one", bench.request(count=2))
    bench.im.slow = 3
    assert len(bench.provider().acquire("one", bench.request(count=2))) == 2
    assert len(bench.left()) == 1


def test_what_infrastructure_manager_has_forgotten_is_given_up_and_made_again(bench: ImBench) -> None:
    """It was started anew in mid-create: what it is at work on it does not destroy."""
    bench.im.slow = 1000
    for _ in range(2):
        with pytest.raises(ProviderError, match="so far"):
            bench.provider().acquire("one", bench.request())
    bench.im.busy = True
    with pytest.raises(ProviderError, match="so far"):
        bench.provider().acquire("one", bench.request())
    (first,) = bench.left()
    bench.im.busy = False
    with pytest.raises(ProviderError, match="started anew"):
        bench.provider().acquire("one", bench.request())
    assert bench.left() == []
    bench.im.slow = 0
    assert len(bench.provider().acquire("one", bench.request())) == 1
    assert bench.left() != [first]


def test_an_addition_that_infrastructure_manager_has_forgotten_is_made_again(bench: ImBench) -> None:
    """It was started anew while it added machines: those are `unconfigured`, and it goes on with none."""
    bench.provider().acquire("one", bench.request())
    bench.im.dies = 1
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request("ps", count=3))
    bench.im.start()
    began = bench.now
    with pytest.raises(ProviderError, match="1 of 3 machines in west so far"):
        bench.provider().acquire("one", bench.request("ps", count=3))
    while bench.im.infrastructures["0000-1"].machines.keys() != {"0"}:
        with pytest.raises(ProviderError, match=r"so far|stopped adding machines to .* started anew"):
            bench.provider().acquire("one", bench.request("ps", count=3))
    assert bench.now - began < 130
    assert len(bench.provider().acquire("one", bench.request("ps", count=3))) == 3
    assert len(bench.provider().nodes("one")) == 4
    assert len(bench.left()) == 1, "what else the cluster has stays"


def test_an_addition_that_goes_on_is_waited_for(bench: ImBench) -> None:
    """Only its answer was lost: however long it takes, it is not begun a second time."""
    bench.provider().acquire("one", bench.request())
    bench.im.stays = 2
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request("ps", count=2))
    for _ in range(5):
        with pytest.raises(ProviderError, match="2 of 2 machines in west so far"):
            bench.provider().acquire("one", bench.request("ps", count=2))
        with pytest.raises(ProviderError, match="still adding other machines"):
            bench.provider().acquire("one", bench.request("other"))
    bench.im.goes_on()
    assert len(bench.provider().acquire("one", bench.request("ps", count=2))) == 2
    assert len(bench.provider().acquire("one", bench.request("other"))) == 1
    assert len(bench.provider().nodes("one")) == 4


def test_the_next_addition_takes_no_machine_off_the_list_that_nobody_ends(bench: ImBench) -> None:
    """As Infrastructure Manager does with what it has forgotten to go on with."""
    bench.provider().acquire("one", bench.request())
    bench.im.dies = 1
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request("ps", count=2))
    bench.im.start()
    bench.im.calls.clear()
    assert len(bench.provider().acquire("one", bench.request("other"))) == 1
    assert "DELETE /infrastructures/0000-1/vms/1?context=0" in bench.changed()
    assert len(bench.provider().acquire("one", bench.request("ps", count=2))) == 2
    assert len(bench.provider().nodes("one")) == 4


def test_numbers_that_are_given_anew_bring_no_addresses_of_before(bench: ImBench) -> None:
    """A driver has one provider for as long as it lives."""
    provider = bench.provider()
    provider.acquire("one", bench.request())
    bench.im.dies = 1
    with pytest.raises(ProviderError, match="does not answer"):
        provider.acquire("one", bench.request("ps", count=2))
    bench.im.start()
    (before,) = [node for node in provider.nodes("one") if node.role == "ps"]
    bench.later(130)
    with pytest.raises(ProviderError, match="started anew"):
        provider.acquire("one", bench.request("ps", count=2))
    after = provider.acquire("one", bench.request("ps", count=2))
    assert before.id in {node.id for node in after}
    assert before.address not in {node.address for node in after}


def test_numbers_that_are_given_anew_between_two_looks_are_the_new_ones(bench: ImBench) -> None:
    """Tries that failed take numbers, too, until the addition is done."""
    bench.provider().acquire("one", bench.request())
    bench.im.infrastructures["0000-1"].next += 1
    bench.im.stays = 2
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request("ps", count=2))
    assert {"2", "3"} < bench.im.infrastructures["0000-1"].machines.keys()
    told = bench.im.told

    def ends(found, what):  # type: ignore[no-untyped-def]
        if what == "data":
            bench.im.goes_on()
        return told(found, what)

    bench.im.told = ends  # type: ignore[method-assign]
    made = bench.provider().acquire("one", bench.request("ps", count=2))
    assert [node.id for node in made] == ["0000-1-1", "0000-1-2"]
    assert len(bench.provider().nodes("one")) == 3


def test_a_lease_is_renewed_while_the_first_machines_are_made(bench: ImBench) -> None:
    """Infrastructure Manager takes what has no machines in it for the end, and says that it failed."""
    bench.im.slow = 200
    with pytest.raises(ProviderError, match="so far"):
        bench.provider().acquire("one", bench.request())
    bench.provider().renew("one", 900)
    bench.im.slow = 3
    assert len(bench.provider().acquire("one", bench.request())) == 1
    bench.im.calls.clear()
    bench.provider().renew("one", 900)
    assert bench.changed() == ["POST /infrastructures/0000-1?context=0"]


def test_none_is_asked_for_while_what_was_asked_for_may_be_there(bench: ImBench) -> None:
    """The answer is lost, and Infrastructure Manager does not say yet whose what it has is."""
    bench.im.loses.append("POST /infrastructures?async")
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request())
    bench.im.silent = 2
    with pytest.raises(ProviderError, match="does not say so far whose 0000-1 is"):
        bench.provider().acquire("one", bench.request())
    assert len(bench.provider().acquire("one", bench.request())) == 1
    assert bench.left() == ["0000-1"]


def test_what_is_never_told_is_not_waited_for(bench: ImBench) -> None:
    """Of an infrastructure that it had just begun when it was started anew it says nothing ever."""
    bench.im.loses.append("POST /infrastructures?async")
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", bench.request())
    bench.im.silent = 1000
    bench.later(130)
    assert len(bench.provider().acquire("one", bench.request())) == 1


def test_one_that_was_asked_for_twice_goes_with_the_cluster(bench: ImBench) -> None:
    """Its answer came after it had been given up."""
    bench.im.loses.append("POST /infrastructures?async")
    with pytest.raises(ProviderError):
        bench.provider().acquire("one", bench.request())
    (first,) = bench.left()
    late = bench.im.infrastructures.pop(first)
    bench.provider().acquire("one", bench.request())
    bench.im.infrastructures[first] = late
    assert len(bench.left()) == 2
    bench.provider().release("one")
    assert bench.left() == []


def test_an_infrastructure_that_cannot_be_described_is_not_in_the_way_of_giving_back(bench: ImBench) -> None:
    bench.provider().acquire("one", bench.request())
    bench.provider().acquire("two", bench.request())
    bench.im.loses.append("GET /infrastructures/0000-2/radl")
    bench.im.breaks = "'NoneType' object has no attribute 'systems'"
    bench.provider().release("one")
    assert bench.im.loses == []
    assert bench.left() == ["0000-2"]


def test_it_is_destroyed_while_it_is_made(bench: ImBench) -> None:
    bench.im.slow = 200
    with pytest.raises(ProviderError, match="so far"):
        bench.provider().acquire("one", bench.request())
    bench.im.infrastructures.clear()
    bench.im.slow = 0
    assert len(bench.provider().acquire("one", bench.request())) == 1
    assert len(bench.left()) == 1


def test_one_of_two_fails_and_neither_stays(bench: ImBench) -> None:
    """Whatever else the cluster has stays."""
    bench.provider().acquire("one", bench.request())
    provider = bench.provider()
    made = bench.im.make

    def one_fails(found, body):  # type: ignore[no-untyped-def]
        new = made(found, body)
        found.message = "2026-01-02 03:04:05.67: (AuthFailure) of an earlier addition\n"
        found.machines[new[-1]].state, found.machines[new[-1]].message = "failed", NO_HOST
        return new

    bench.im.make = one_fails  # type: ignore[method-assign]
    with pytest.raises(NoCapacityError, match="No valid host was found") as caught:
        provider.acquire("one", bench.request("ps", count=2))
    assert caught.value.zones == ("west",)
    assert [node.role for node in provider.nodes("one")] == ["worker"]
    bench.im.make = made  # type: ignore[method-assign]
    assert len(provider.acquire("one", bench.request("ps", count=2))) == 2


def test_a_machine_vanishes_and_is_replaced(bench: ImBench) -> None:
    """Switched off, taken away, or removed by somebody: gone, with the reason."""
    provider = bench.provider()
    provider.acquire("one", bench.request(count=3))
    machines = next(iter(bench.im.infrastructures.values())).machines
    machines["0"].state = "off"
    machines["1"].state = "stopped"
    del machines["2"]
    gone = provider.nodes("one")
    assert {node.state for node in gone} == {NodeState.GONE}
    words = ["behind Infrastructure Manager's back", "switched off", "somebody has removed it"]
    assert all(word in node.reason for word, node in zip(words, gone, strict=True))
    new = provider.acquire("one", bench.request(count=1, token="again"))
    assert [node.state for node in new] == [NodeState.READY]
    assert len(bench.left()) == 1


def test_all_of_it_is_destroyed_by_somebody_else(bench: ImBench) -> None:
    provider = bench.provider()
    first = provider.acquire("one", bench.request(count=2))
    bench.im.infrastructures.clear()
    assert states(bench) == [NodeState.GONE, NodeState.GONE]
    provider.renew("one", 900)
    new = provider.acquire("one", bench.request(token="again"))
    assert {node.id for node in new}.isdisjoint(node.id for node in first)
    provider.release("one")
    assert bench.left() == []


def test_states_of_infrastructure_manager(bench: ImBench) -> None:
    provider = bench.provider()
    provider.acquire("one", bench.request())
    machine = next(iter(bench.im.infrastructures.values())).machines["0"]
    found = {}
    for state in ("pending", "running", "configured", "unconfigured", "unknown", "failed", "deleting"):
        machine.state = state
        found[state] = states(bench)[0].value
    assert found == {
        "pending": "STARTING", "running": "READY", "configured": "READY", "unconfigured": "READY",
        "unknown": "READY", "failed": "GONE", "deleting": "GONE",
    }  # fmt: skip


def test_a_node_says_how_to_log_in(bench: ImBench) -> None:
    (node,) = bench.provider().acquire("one", bench.request())
    assert (node.address, node.private_address, node.user) == ("192.0.2.10", "10.0.0.10", "cloudadm")
    assert node.key is not None
    assert node.key.read_text() == "-----BEGIN KEY-----\nabc\n-----END KEY-----\n"
    assert node.key.stat().st_mode & 0o077 == 0
    bench.provider().release("one")
    assert not node.key.exists()


def test_spot_is_refused_with_the_reason(bench: ImBench) -> None:
    wanted = bench.request()

    with pytest.raises(UsageError, match=r"rents no spot machines: what Infra.* refused there"):
        bench.provider().preflight([replace(wanted, spot=True)])
    assert bench.sent() == []


def test_gpus_have_their_image_and_clouds_by_size_their_size(bench: ImBench) -> None:
    gpu, sized = bench.provider().dry_run(
        "one",
        [bench.request(instance_type="gpu.2"), bench.request("ps", instance_type="medium", region="one")],
    )
    assert "ost://k/2" in gpu["parameters"]["radl"]
    assert "gpu.count" not in gpu["parameters"]["radl"], "the type says it"
    assert "cpu.count >= 4 and" in sized["parameters"]["radl"]
    assert "memory.size >= 16384M" in sized["parameters"]["radl"]
    assert "instance_type" not in sized["parameters"]["radl"]


def test_where_the_dead_man_switch_comes_only_with_the_first_login_is_said(bench: ImBench) -> None:
    west, one = bench.request(), bench.request(instance_type="medium", region="one")
    provider = bench.provider()
    assert provider.preflight([west]) == []
    assert "only once somebody has logged in: IM hands no user data to OpenNebula" in "".join(
        provider.preflight([one])
    )
    with_switch, without = (each["parameters"]["radl"] for each in provider.dry_run("one", [west, one]))
    assert "dead-man switch" in with_switch
    assert without.endswith("contextualize ()\n")


def test_quotas_are_looked_at_before(bench: ImBench) -> None:
    bench.im.quotas = {"cores": {"used": 4, "limit": 10}, "instances": {"used": 1, "limit": -1}}
    assert bench.provider().preflight([bench.request()]) == []
    with pytest.raises(
        UsageError, match=r"quota of cores in the cloud west .* 8 are needed, 6 of 10 are free"
    ):
        bench.provider().preflight([bench.request(), bench.request("ps")])


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ("(AuthFailure) when calling RunInstances", UsageError, "does not take your credentials"),
        ("Error: No concrete system to deploy: a in cloud: west", UsageError, "cannot make such machines"),
        ("Quota exceeded for cores: Requested 8", NoCapacityError, "quota in the cloud west"),
        ("InsufficientInstanceCapacity", NoCapacityError, "no such machines now"),
        ("Error: something else", ProviderError, "something else"),
        ("", ProviderError, "does not say why"),
    ],
)  # fmt: skip
def test_what_it_says_becomes_an_error_with_a_hint(message: str, kind: type[Exception], words: str) -> None:
    error = explained(f"2026-01-02 03:04:05.678: {message}\n", "west", ["west"])
    assert isinstance(error, kind)
    assert words in error.args[0]
    assert "2026" not in error.args[0]
    assert error.hint


def test_what_the_cloud_says_is_told_without_what_infrastructure_manager_says_around_it() -> None:
    """As IM 2.0.0 says it of two machines on EC2."""
    one = (
        "Error launching the VMs of type tm-ps-b8bd to cloud ID ec2 of type EC2. Attempt 1: Error Launching "
        "in region us-east-1 with image: ami-920a in VPC: vpc-81ce-subnet-9457 an ondemand instance of type: "
        "m4.large . An error occurred (VcpuLimitExceeded) when calling the RunInstances operation: {}. "
    )
    message = f"Error Adding resources: Error adding VMs: {one.format('No more')}{one.format('No more')}"
    error = explained(message, "ec2", ["ec2"])
    assert error.args[0] == (
        "your quota in the cloud ec2 does not suffice: An error occurred (VcpuLimitExceeded) when calling "
        "the RunInstances operation: No more."
    )


def test_credentials_are_in_the_header_and_in_no_message(bench: ImBench) -> None:
    bench.im.estimate_error = f"error authenticating with {SECRET}"
    with pytest.raises(UsageError) as caught:
        bench.provider().preflight([bench.request()])
    assert SECRET in bench.im.headers[-1]["Authorization"]
    assert SECRET not in str(caught.value.args)
    assert "***" in caught.value.args[0]
    with bench.without_permission(), pytest.raises(UsageError, match="does not take your login"):
        bench.provider().check_up()


def test_a_lease_that_is_renewed_by_another_driver_is_seen(bench: ImBench) -> None:
    """It stands in the infrastructure, not in the home."""
    bench.provider().acquire("one", bench.request(lease_s=600))
    bench.provider().renew("one", 7200)
    bench.later(3600)
    assert bench.provider().reap([]) == []
    bench.later(7200)
    assert len(bench.provider().reap([])) == 1


def test_a_run_that_goes_on_while_another_reaps_keeps_its_machines(bench: ImBench) -> None:
    """It is looked again once nobody else may ask for the cluster."""
    provider = bench.provider()
    provider.acquire("one", bench.request(lease_s=600))
    bench.later(3600)
    marked = provider._observed.marked

    def taken_up_meanwhile() -> list[tuple[str, InfrastructureOwner]]:
        found = list(marked())
        bench.provider().renew("one", 7200)
        return found

    provider._observed.marked = taken_up_meanwhile  # type: ignore[assignment, method-assign]
    assert provider.reap([]) == []
    assert states(bench) == [NodeState.READY]


def test_a_run_that_goes_on_after_another_has_reaped_knows_at_once_what_has_ended(bench: ImBench) -> None:
    """And has other machines."""
    (old,) = bench.provider().acquire("one", bench.request(lease_s=600))
    bench.later(3600)
    assert bench.provider().reap([]) == [old.id]
    assert states(bench) == [NodeState.GONE]
    (new,) = bench.provider().acquire("one", bench.request(token="t2"))
    assert {node.id: node.state for node in bench.provider().nodes("one")} == {
        old.id: NodeState.GONE,
        new.id: NodeState.READY,
    }
    bench.provider().release("one")
    assert bench.left() == []
    assert bench.provider().nodes("one") == []
