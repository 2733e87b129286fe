"""Documents for Infrastructure Manager: whatever is asked for stands in them, and is read back."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from trainmaster.providers.im.radl import (
    InfrastructureOwner,
    WantedMachines,
    features_of,
    machine_of,
    mark_of,
    renewed,
    written,
)

WORDS = st.text(string.ascii_letters + string.digits + "-._/: ", min_size=1, max_size=30)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
MARK = InfrastructureOwner("home-1", "run-1-train", 1_000_000.0)
PLAIN = WantedMachines("tm-worker-1", "worker", 2, "west", "ost://k/1", "cloudadm", "m1.large")


@st.composite
def wanted(draw: st.DrawFn) -> WantedMachines:
    return WantedMachines(
        system=draw(NAMES),
        role=draw(NAMES),
        count=draw(st.integers(1, 999)),
        cloud=draw(NAMES),
        image=draw(WORDS),
        user=draw(NAMES),
        instance_type=draw(st.just("") | WORDS),
        zone=draw(st.just("") | WORDS),
        cpus=draw(st.sampled_from([0.0, 0.5, 1.0, 96.0])),
        memory_bytes=draw(st.sampled_from([0, 512 << 20, 768 << 30])),
        gpu=draw(st.just("") | NAMES),
        gpus=draw(st.integers(0, 16)),
        disk_bytes=draw(st.integers(0, 1 << 44)),
        public_network=draw(st.just("") | WORDS),
        private_network=draw(st.just("") | WORDS),
        has_public=draw(st.booleans()),
        ssh_from=draw(st.sampled_from(["", "203.0.113.7/32"])),
        tags=draw(st.dictionaries(NAMES, NAMES, max_size=3)),
    )


@given(wanted(), NAMES, NAMES, st.integers(0, 1 << 40))
def test_what_is_asked_for_stands_in_it(
    machines: WantedMachines, home: str, cluster: str, until: int
) -> None:
    mark = InfrastructureOwner(home, cluster, float(until))
    radl = written(mark, machines)
    assert mark_of(radl) == mark
    told = features_of(radl[radl.index("\nsystem ") :])
    assert told.get("instance_type", "") == machines.instance_type
    assert told.get("availability_zone", "") == machines.zone
    assert float(told.get("cpu.count", 0)) == machines.cpus
    assert told.get("memory.size", "0M") == f"{machines.memory_bytes >> 20}M"
    assert int(told.get("gpu.count", 0)) == machines.gpus
    assert told.get("gpu.model", "") == (machines.gpu if machines.gpus else "")
    assert told["disk.0.image.url"] == machines.image
    assert told["disk.0.os.credentials.username"] == machines.user
    assert int(told.get("disk.0.size", "0G")[:-1]) << 30 >= machines.disk_bytes
    assert ("net_interface.1.connection" in told) == machines.has_public == ("network pub " in radl)
    assert f"\ndeploy {machines.system} {machines.count} {machines.cloud}\n" in radl
    assert radl.endswith("contextualize ()\n")
    assert machine_of(radl).system == machines.system


def test_what_is_done_at_boot_is_handed_to_cloud_init() -> None:
    script = "#!/bin/sh\n# it's a script (of ours)\n\ncat <<'END'\n  deeper: 1\nEND\n"
    radl = written(MARK, replace(PLAIN, boot_script=script))
    assert radl.endswith("\n  system tm-worker-1 configure tm-boot with cloud_init\n)\n")
    recipe = radl[radl.index("@begin\n") + 7 : radl.index("@end")]
    assert YAML(typ="safe").load(recipe) == {"runcmd": [["sh", "-c", script]]}
    assert (mark_of(radl), machine_of(radl).system) == (MARK, "tm-worker-1")
    with pytest.raises(ValueError, match="@end"):
        written(MARK, replace(PLAIN, boot_script="echo @end"))


def test_two_networks_and_ssh_from_one_block() -> None:
    radl = written(
        MARK, replace(PLAIN, ssh_from="203.0.113.7/32", public_network="ext", private_network="int")
    )
    public = "network pub (outbound = 'yes' and outports = '203.0.113.7/32-22/tcp' and provider_id = 'ext')"
    assert public in radl
    assert "network priv (outbound = 'no' and provider_id = 'int')" in radl


@pytest.mark.parametrize("bad", ["it's", "a\\b", "a\nb"])
def test_what_no_document_can_hold_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="cannot be said in RADL"):
        written(MARK, replace(PLAIN, image=bad))


def test_a_lease_is_renewed_without_asking_for_machines() -> None:
    radl = renewed(replace(MARK, until=5.4))
    assert mark_of(radl) == InfrastructureOwner("home-1", "run-1-train", 5.0)
    assert "deploy" not in radl
    assert "system" not in radl


@pytest.mark.parametrize(
    "radl",
    [
        "",
        "system a ()",
        "description other (home = 'a' and cluster = 'b' and until = '1')",
        "description trainmaster (home = 'a')",
        "description trainmaster (home = 'a' and cluster = 'b' and until = 'x')",
    ],
)
def test_what_is_not_ours_has_no_mark(radl: str) -> None:
    assert mark_of(radl) is None


def test_a_machine_as_infrastructure_manager_tells_it() -> None:
    """Addresses by network, whatever their order; the key over several lines."""
    told = machine_of(
        "network pub ( outbound = 'yes' )\n"
        "system tm-worker-1 (\nstate = 'configured' and\nnet_interface.1.ip = '192.0.2.1' and\n"
        "net_interface.0.connection = 'priv' and\nnet_interface.1.connection = 'pub' and\n"
        "net_interface.0.ip = '10.0.0.1' and\ncpu.count = 4 and\n"
        "disk.0.os.credentials.private_key = '-----BEGIN\nabc\n-----END' and\n"
        "disk.0.os.credentials.username = 'cloudadm'\n)\n\ncontextualize ()\n"
    )
    assert (told.system, told.address, told.private_address) == ("tm-worker-1", "192.0.2.1", "10.0.0.1")
    assert (told.user, told.key) == ("cloudadm", "-----BEGIN\nabc\n-----END")
    assert "abc" not in repr(told)


def test_without_a_public_address_the_private_one_is_both() -> None:
    told = machine_of(
        "system a (\nnet_interface.0.connection = 'priv' and net_interface.0.ip = '10.0.0.1'\n)"
    )
    assert (told.address, told.private_address) == ("10.0.0.1", "10.0.0.1")
    assert machine_of("system a ( state = 'pending' )").address == ""
