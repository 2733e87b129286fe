"""What Ansible is given of a cluster."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cluster.roles.playbook import (
    PENDING,
    RoleHost,
    host_names,
    known_lines,
    make_inventory,
    make_playbook,
    settings_of,
    wanted_of,
)
from trainmaster.transport.base import Target

JUMP = Target("door", "192.0.2.1", 2222, "me", Path("/k ey"))
KNOWN = Path("/t/known_hosts")


def host(name: str, *members: str, jump: Target | None = None) -> RoleHost:
    target = Target(name, "10.1.0.1", 22, "admin", Path("/k ey"), jump=jump)
    return RoleHost(name, target, "10.0.0.1", "/usr/bin/python3", members, 2, ("ssh-ed25519 AAAA",), ("t K",))


def test_groups_are_the_roles_of_members() -> None:
    hosts = [host("a", "ps-0", "worker-0"), host("b", "worker-1", "worker-2")]
    inventory = make_inventory(hosts, ["b"], KNOWN)["all"]
    assert set(inventory["children"]["worker"]["hosts"]) == {"a", "b"}
    assert set(inventory["children"]["ps"]["hosts"]) == {"a"}
    assert set(inventory["children"][PENDING]["hosts"]) == {"b"}
    variables = inventory["hosts"]["a"]
    assert variables["private"] == "10.0.0.1"
    assert variables["trainmaster_gpus"] == 2
    assert variables["ansible_python_interpreter"] == "/usr/bin/python3"
    json.dumps(inventory)


def test_only_the_key_that_we_know_a_host_by_is_taken() -> None:
    hosts = [host("A", "worker-0", jump=JUMP), host("b", "worker-1")]
    variables = make_inventory(hosts, [], KNOWN)["all"]["hosts"]["A"]
    options = shlex.split(variables["ansible_ssh_common_args"])
    for wanted in ("StrictHostKeyChecking=yes", f'UserKnownHostsFile="{KNOWN}"', "HostKeyAlias=node-a"):
        assert wanted in options
    way = shlex.split(next(each for each in options if each.startswith("ProxyCommand=")).partition("=")[2])
    assert way[0] == "ssh"
    assert way[-1] == "192.0.2.1"
    assert "HostKeyAlias=jump-a" in way
    assert "/k ey" in way
    assert known_lines(hosts)[:2] == ["node-a ssh-ed25519 AAAA", "jump-a t K"]


def test_roles_of_all_come_first_and_values_stay_out_of_files() -> None:
    roles = {"all": [Path("/c/base")], "ps": [Path("/c/hdfs")]}
    first, second = make_playbook(roles, ["TOKEN"], {"MARK": "/t"})
    assert (first["hosts"], second["hosts"]) == (PENDING, f"ps:&{PENDING}")
    assert second["roles"] == [{"role": "/c/hdfs"}]
    assert first["environment"] == {
        "TOKEN": "{{ lookup('ansible.builtin.env', 'TRAINMASTER_ROLES_ENV_TOKEN') }}",
        "MARK": "/t",
    }


def test_a_role_gets_its_variables_and_secrets_stay_out_of_files() -> None:
    base = Path("/c/base")
    given = {"all": {base: {"version": "2.9.0", "key": {"secret": "TOKEN"}}}, "ps": {base: {}}}
    first, second = make_playbook({"all": [base], "ps": [base]}, [], {}, given)
    token = "{{ lookup('ansible.builtin.env', 'TRAINMASTER_ROLES_ENV_TOKEN') }}"
    assert first["roles"] == [{"role": "/c/base", "vars": {"version": "2.9.0", "key": token}}]
    assert second["roles"] == [{"role": "/c/base"}]


def test_a_machine_is_to_have_the_roles_of_its_groups() -> None:
    roles = {"all": {"base": "1"}, "ps": {"hdfs": "2"}}
    assert wanted_of(["worker"], roles) == {"base": "1"}
    assert wanted_of(["ps"], roles) == {"base": "1", "hdfs": "2"}
    assert wanted_of(["worker"], {"ps": {"hdfs": "2"}}) == {}


def test_settings_are_ours() -> None:
    settings = settings_of(Path("/t"), 4, "/var/tmp/x", [Path("/c/roles")])
    assert settings["ANSIBLE_FORKS"] == "4"
    assert settings["ANSIBLE_REMOTE_TEMP"] == "/var/tmp/x/ansible"
    assert settings["ANSIBLE_PIPELINING"] == "True"


@given(st.lists(st.text(max_size=8), max_size=8))
def test_names_of_hosts_are_plain_and_differ(machines: list[str]) -> None:
    names = host_names(machines)
    assert len(set(names)) == len(machines)
    assert all(
        set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
        for name in names
    )
