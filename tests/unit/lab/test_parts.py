"""Small parts: addresses, packet filters, netlink messages, files, an image's name."""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.lab import LabPlace, requirements
from trainmaster.lab.access import hosts_yaml, known_hosts
from trainmaster.lab.addresses import SPACE, PublicAddresses, free_block, mac_of, port_of, zone_blocks
from trainmaster.lab.errors import LabError
from trainmaster.lab.firewall import Permission, filter_table, permissions
from trainmaster.lab.host_keys import SshKey
from trainmaster.lab.image import HostImage
from trainmaster.lab.nfqueue import ACCEPT, packets, verdict
from trainmaster.lab.runtime import Runtime
from trainmaster.lab.settings import KEY_NAME
from trainmaster.providers.inventory import read_inventory


def test_a_lab_gets_addresses_that_nobody_uses() -> None:
    blocks: list[ipaddress.IPv4Network] = []
    for _ in range(16):
        blocks.append(free_block(blocks, "deadbeef"))
    assert len({str(block) for block in blocks}) == 16
    assert all(block.subnet_of(SPACE) for block in blocks)
    with pytest.raises(LabError, match="in use"):
        free_block(blocks, "deadbeef")
    private = next(blocks[0].subnets(prefixlen_diff=1))
    zones = zone_blocks(private, ["a", "b", "c", "d"])
    assert len(set(zones.values())) == 4
    assert all(ipaddress.IPv4Network(block).subnet_of(private) for block in zones.values())


def test_public_addresses_come_round_and_are_never_the_networks_own() -> None:
    addresses = PublicAddresses(ipaddress.IPv4Network("10.0.0.0/29"))
    taken = [addresses.take() for _ in range(7)]
    assert taken[:6] == [f"10.0.0.{number}" for number in range(1, 7)]
    assert taken[6] == "10.0.0.1"


def test_names_of_interfaces_fit_the_kernel(tmp_path: Path) -> None:
    place = LabPlace.of_home(tmp_path, tmp_path, "x" * 32)
    assert len(place.root_link) <= 15
    assert len(port_of("i-0123456789abcdef0")) <= 15
    assert mac_of("10.0.0.1") == "0a:00:0a:00:00:01"
    other = LabPlace.of_home(tmp_path, tmp_path, "y" * 32)
    assert other.mark != place.mark


def test_rules_of_groups_become_rules_of_the_filter() -> None:
    rule = SimpleNamespace(
        ip_protocol="tcp", from_port=80, to_port=90, source_group={"GroupId": "sg-1"}, cidr_ipv4=None
    )
    ping = SimpleNamespace(
        ip_protocol="icmp", from_port=8, to_port=-1, source_group={}, cidr_ipv4="10.0.0.0/8"
    )
    six = SimpleNamespace(ip_protocol="-1", from_port=None, to_port=None, source_group={}, cidr_ipv4=None)
    found = permissions([rule, ping, six], {"sg-1": ["10.0.0.5", "10.0.0.4"]})
    assert found == [
        Permission("tcp", 80, 90, ("10.0.0.4/32", "10.0.0.5/32")),
        Permission("icmp", 8, -1, ("10.0.0.0/8",)),
    ]
    lines = filter_table(
        found, [Permission("-1", None, None, ("0.0.0.0/0",))], "169.254.169.254"
    ).splitlines()
    assert "-A INPUT -s 10.0.0.4/32 -p tcp --dport 80:90 -j ACCEPT" in lines
    assert "-A INPUT -s 10.0.0.0/8 -p icmp --icmp-type 8 -j ACCEPT" in lines
    assert "-A OUTPUT -d 0.0.0.0/0 -j ACCEPT" in lines
    assert ":INPUT DROP [0:0]" in lines


def test_messages_of_the_packet_queue() -> None:
    header = struct.pack("=HH", 11, 1) + struct.pack(">IHB", 77, 0x0800, 1) + b"\0"
    payload = struct.pack("=HH", 24, 10) + bytes(12) + bytes([10, 0, 0, 5]) + bytes(4)
    body = bytes(4) + header + payload
    message = struct.pack("=IHHII", 16 + len(body), 3 << 8, 0, 0, 0) + body
    assert list(packets(message * 2)) == [(77, bytes([10, 0, 0, 5]))] * 2
    answer = verdict(7, 77, ACCEPT)
    assert struct.unpack_from("=IH", answer) == (len(answer), 3 << 8 | 1)
    assert struct.unpack_from(">H", answer, 18)[0] == 7
    assert struct.unpack_from(">II", answer, 24) == (ACCEPT, 77)


def test_known_hosts_has_both_addresses() -> None:
    assert known_hosts([(("1.1.1.1", "2.2.2.2"), "ssh-ed25519 A")]) == "1.1.1.1,2.2.2.2 ssh-ed25519 A\n"


def test_another_recipe_is_another_image() -> None:
    one = HostImage("bookworm", "http://mirror")
    assert one.key == HostImage("bookworm", "http://mirror").key
    assert one.key.startswith("bookworm-")
    assert (
        len({one.key, HostImage("trixie", "http://mirror").key, HostImage("bookworm", "http://other").key})
        == 3
    )
    assert HostImage.of_machine(more_packages=("vim",)).key != HostImage.of_machine().key


def test_why_there_is_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in requirements.why_not()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "debootstrap" else tool)
    assert requirements.why_not() == "it needs the packages debootstrap"


def test_the_inventory_has_only_hosts_that_the_labs_own_key_opens(tmp_path: Path) -> None:
    key = SshKey.generate().public

    def condition(**more: str) -> dict[str, str]:
        return {"private_address": "198.18.0.4", "host_key": key, "zone": "us-east-1a", **more}

    hosts = [
        {"id": f"i-{number}", "address": f"198.18.16.{number}", "type": "m4.large", "state": state}
        for number, state in enumerate(("running", "running", "terminated", "running"))
    ]
    conditions = {
        "i-0": condition(key_name=KEY_NAME),
        "i-1": condition(key_name="trainmaster-abcd-a-cluster"),  # of the provider `lab`
        "i-2": condition(key_name=KEY_NAME),
        "i-3": condition(),
    }
    place = LabPlace.of_home(tmp_path, tmp_path, "x" * 32)
    text = hosts_yaml(place, {"hosts": hosts, "conditions": conditions}, {"m4.large": 1}, "/python")
    place.directory.mkdir()
    place.private_key.touch(mode=0o600)
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    assert [host.name for host in read_inventory(file).hosts] == ["i-0"]


def test_a_virtual_environment_of_debians_own_python_finds_it_on_hosts(tmp_path: Path) -> None:
    """Its ``python3`` leads to ``/usr/bin/python3``, which is a link that is not shared."""
    environment, system = tmp_path / "venv/bin", tmp_path / "usr/bin"
    for directory in (environment, system):
        directory.mkdir(parents=True)
    real = system / "python3.11"
    real.touch()
    (system / "python3").symlink_to("python3.11")
    (environment / "python3").symlink_to(system / "python3")
    (environment / "python").symlink_to("python3")
    runtime = Runtime((str(environment.parent), str(real)), str(environment / "python"), "")
    assert runtime._links() == [system / "python3"]
