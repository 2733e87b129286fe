"""The inventory: what it means, and what is said about mistakes in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.providers.inventory import Inventory, expand, inventory_file, read_inventory
from trainmaster.spec.errors import RecipeError, UsageError


def read(directory: Path, text: str) -> Inventory:
    file = directory / "hosts.yaml"
    file.write_text(text)
    return read_inventory(file)


def test_all_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "id_lab").write_text("")
    (tmp_path / "id_lab").chmod(0o600)
    inventory = read(
        tmp_path,
        """
defaults: {user: alice, key: id_lab, slots: 4, labels: {room: b12, owner: us}}
hosts:
  - 10.0.0.[1-2]
  - address: gpu[01-02].lab
    name: gpu[1-2]
    private_address: 192.168.0.[11-12]
    gpus: 2
    port: 2222
    user: bob
    labels: {owner: them}
  - {address: "fe80::1", jump: "carol@gate:2200", python: ~/py/bin/python3, directory: /scratch/tm}
""",
    )
    assert [host.name for host in inventory.hosts] == ["10.0.0.1", "10.0.0.2", "gpu1", "gpu2", "fe80::1"]
    plain, _, gpu, gpu2, far = inventory.hosts
    assert (plain.user, plain.key, plain.slots, plain.gpus, plain.port) == (
        "alice",
        tmp_path / "id_lab",
        4,
        0,
        22,
    )
    assert plain.labels == {"room": "b12", "owner": "us"}
    assert (gpu.user, gpu.port, gpu.gpus, gpu.private_address) == ("bob", 2222, 2, "192.168.0.11")
    assert gpu.labels == {"room": "b12", "owner": "them"}
    assert (gpu2.address, gpu2.private_address, gpu2.line) == ("gpu02.lab", "192.168.0.12", 5)
    assert (far.jump, far.python, far.directory) == ("carol@gate:2200", "~/py/bin/python3", "/scratch/tm")
    assert inventory.find("gpu2") == gpu2
    assert inventory.find("nobody") is None


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDkQ"
MISTAKES = {
    "hosts: [{address: a, slot: 2}]": "1:22: hosts.0.slot: unknown key 'slot'; did you mean 'slots'?",
    "host: [a]": "1:1: host: unknown key 'host'; did you mean 'hosts'?",
    "hosts: [{user: x}]": "1:9: hosts.0: no `address`; write a host name",
    "hosts: [{address: a b}]": "1:19: hosts.0.address: the text 'a b'; write a host name or an IP address",
    "hosts: [a, a]": "1:12: hosts.1: the address a:22 a second time (first in line 1); list each host once",
    "hosts: [{address: a, name: x}, {address: b, name: x}]": "the name x a second time (first in line 1)",
    "hosts: [{address: a, name: x}, {address: a}]": "the address a:22 a second time (first in line 1)",
    'hosts: ["n[3-1]"]': "1:9: hosts.0.address: the range [3-1] runs backwards; write [1-3]",
    'hosts: ["n[1-9999]"]': "more than 4096 hosts in 'n[1-9999]'; write a smaller range",
    'hosts: [{address: "n[1-2]", name: "m[1-3]"}]': "1:35: hosts.0.name: 3 of 'm[1-3]' for 2 addresses",
    'hosts: [{address: "n[1-2]", name: m}]': "1 of 'm' for 2 addresses; write as many",
    f'hosts: [{{address: "n[1-2]", host_key: {KEY}}}]': "one host key for several hosts; leave it out",
    "hosts: [{address: a, host_key: ssh-dss AAAA}]": "write the type and the key as in the host's ssh_host_",
    "hosts: [{address: a, port: 70000}]": "hosts.0.port: the number 70000; write a number of at most 65535",
    "hosts: [{address: a, slots: 0}]": "hosts.0.slots: the number 0; write a whole number of at least 1",
    "hosts: [{address: a, key: none}]": "hosts.0.key: no such file: ",
    "hosts: [{address: a, jump: 'x y'}]": "hosts.0.jump: the text 'x y'; write the host to go through as",
    "hosts: [{address: a, user: -oProxyCommand}]": "hosts.0.user: the text '-oProxyCommand'; write",
    "hosts: [{address: -oProxyCommand=x}]": "hosts.0.address: the text '-oProxyCommand=x'; write a host name",
    "hosts: [{address: a, labels: [x]}]": "hosts.0.labels: a list; write a mapping such as {rack: b}",
    "defaults: {slots: x}\nhosts: [a, b, c]": "1:19: defaults.slots: the text 'x'; write a whole number",
    "defaults: {address: x}\nhosts: [a]": "1:12: defaults.address: unknown key 'address'",
    "defaults: [x]\nhosts: [a]": "1:11: defaults: a list; write a mapping such as {user: alice}",
    "hosts: []": "1:8: hosts: an empty list; write a list such as",
    "hosts: {a: 1}": "1:8: hosts: a mapping; write a list such as",
    "hosts: [null]": "1:9: hosts.0: nothing; write a mapping with the keys address, name, user",
    "- a": "1:1: a list; an inventory is a mapping with the key `hosts`",
    "{}": "1:1: no `hosts`; list the machines",
    "": "1:1: an empty file; an inventory is a mapping with the key `hosts`",
    "hosts: [a]\n---\nhosts: [b]": "a second document; an inventory is one YAML document",
    "hosts: [!!python/object:os.system a]": "a YAML tag '!!python/object:os.system'; inventories have no",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_shown_where_they_are(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "hosts.yaml:"))
    assert MISTAKES[text] in message
    assert len(caught.value.mistakes) == 1, "each mistake once, also one in the defaults of many hosts"


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, "hosts:\n  - {address: a, slots: x}\n  - {address: b, gpus: -1}\n  - {port: 1}\n")
    assert [mistake.line for mistake in caught.value.mistakes] == [2, 3, 4]


def test_where_it_is(tmp_path: Path) -> None:
    assert inventory_file(tmp_path, {}) == tmp_path / "hosts.yaml"
    named = {"TRAINMASTER_HOSTS": "~/mine.yaml"}
    assert inventory_file(tmp_path, named) == Path("~/mine.yaml").expanduser()
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hosts.yaml").touch()
    assert inventory_file(tmp_path, {}) == tmp_path / "lab" / "hosts.yaml"
    (tmp_path / "hosts.yaml").touch()
    assert inventory_file(tmp_path, {}) == tmp_path / "hosts.yaml"
    with pytest.raises(UsageError, match=r"there is no inventory .*none.yaml") as caught:
        read_inventory(tmp_path / "none.yaml")
    assert "hosts:\n" in caught.value.hint
    (tmp_path / "latin.yaml").write_bytes(b"hosts:\n  - \xe9\n")
    with pytest.raises(RecipeError, match=r"latin.yaml:2:5: the byte 0xe9 is not UTF-8"):
        read_inventory(tmp_path / "latin.yaml")


names = st.from_regex(r"[a-z][a-z0-9]{0,6}(\.[a-z0-9]{1,4})?", fullmatch=True)


@given(
    st.lists(
        st.tuples(names, st.integers(1, 64), st.integers(0, 8)), min_size=1, unique_by=lambda row: row[0]
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_what_is_written_is_read(tmp_path: Path, rows: list[tuple[str, int, int]]) -> None:
    """JSON is YAML."""
    hosts = [{"address": name, "slots": slots, "gpus": gpus} for name, slots, gpus in rows]
    inventory = read(tmp_path, json.dumps({"hosts": hosts}))
    assert [(host.address, host.slots, host.gpus) for host in inventory.hosts] == rows


@given(st.text(alphabet="hosts:[]{}-, \n\t'\"&*!#ab1." + "\u00e9", max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_whatever_is_written_gives_hosts_or_mistakes(tmp_path: Path, text: str) -> None:
    try:
        found, mistakes = read(tmp_path, text).hosts, ()
    except RecipeError as error:
        found, mistakes = (), error.mistakes
    assert bool(found) != bool(mistakes)
    assert all(mistake.line >= 1 and mistake.message for mistake in mistakes)


@given(st.integers(0, 500), st.integers(0, 40), st.integers(0, 3))
def test_a_range_gives_each_number_once(first: int, more: int, zeros: int) -> None:
    left, right = str(first).zfill(zeros), str(first + more).zfill(zeros)
    found = expand(f"n[{left}-{right}].lab")
    assert len(set(found)) == len(found) == more + 1
    assert [int(name[1:-4]) for name in found] == list(range(first, first + more + 1))
