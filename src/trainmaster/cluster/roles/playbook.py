"""What Ansible is given: an inventory of nodes, a playbook, keys of hosts. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.roles import secret_of
from trainmaster.transport.base import Target

#: The group of machines that have not had their roles yet.
PENDING: Final = "trainmaster_pending"
#: Before the name of each variable of the recipe that the playbook takes over from our process.
VARIABLE: Final = "TRAINMASTER_ROLES_ENV_"
_CLOSED: Final = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "GlobalKnownHostsFile": "/dev/null",
    "PasswordAuthentication": "no",
}


@dataclass(frozen=True, slots=True)
class RoleHost:
    """A machine as Ansible sees it.

    Attributes:
        name: in the inventory, and so in what Ansible says.
        target: where its SSH server is.
        private: its address towards the others.
        python: the interpreter that modules run with.
        members: of the gang that run there.
        gpus: that it has.
        keys: by which it is known, each ``type base64``; jump_keys: by which the one before it is.
    """

    name: str
    target: Target
    private: str
    python: str
    members: tuple[str, ...]
    gpus: int
    keys: tuple[str, ...]
    jump_keys: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Roles of its members."""
        return tuple(dict.fromkeys(member.rpartition("-")[0] for member in self.members))


def host_names(machines: Sequence[str]) -> list[str]:
    """Names of machines that Ansible takes for nothing else, each another one.

    >>> host_names(["i-0a", "us-east-1;i-0b", "us-east-1,i-0b", "all"])
    ['i-0a', 'us-east-1-i-0b', 'us-east-1-i-0b-2', 'all-2']
    """
    taken = {"all", "ungrouped", "localhost", "chief", "ps", "worker", PENDING}
    found = []
    for machine in machines:
        name = base = re.sub(r"[^A-Za-z0-9_.-]", "-", machine)
        number = 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        found.append(name)
    return found


def wanted_of(groups: Sequence[str], roles: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Digests of the roles that a machine of some groups is to have, by their names.

    Args:
        groups: of the machine, without ``all``.
        roles: digests by group and name.
    """
    return {
        name: digest
        for group, its in roles.items()
        if group == "all" or group in groups
        for name, digest in its.items()
    }


def make_inventory(hosts: Sequence[RoleHost], pending: Iterable[str], known_hosts: Path) -> dict[str, Any]:
    """An inventory in JSON: all hosts, with a group for each role of members.

    Args:
        hosts: of the gang.
        pending: names of those that get their roles now.
        known_hosts: the file with what `known_lines` says.
    """
    names = sorted({group for host in hosts for group in host.groups})
    children: dict[str, Any] = {
        name: {"hosts": {host.name: {} for host in hosts if name in host.groups}} for name in names
    }
    children[PENDING] = {"hosts": {name: {} for name in pending}}
    return {
        "all": {"hosts": {host.name: _variables(host, known_hosts) for host in hosts}, "children": children}
    }


def make_playbook(
    roles: Mapping[str, Sequence[Path]],
    variables: Iterable[str],
    marks: Mapping[str, str],
    given: Mapping[str, Mapping[Path, Mapping[str, Any]]] | None = None,
) -> list[dict[str, Any]]:
    """A play for each group that gets roles, that of all machines first.

    Args:
        roles: directories, by group.
        variables: names of what tasks find in their environment; the values are in our process's.
        marks: variables by which processes of tasks are found again.
        given: variables of roles, by group and directory.
    """
    values = {name: _from_environment(name) for name in variables}
    environment = {**values, **marks}
    return [
        {
            "name": f"roles of {group}",
            "hosts": PENDING if group == "all" else f"{group}:&{PENDING}",
            "gather_facts": group == "all" or "all" not in roles,  # they are kept from play to play
            "environment": environment,
            "roles": [
                {"role": str(directory), **_given((given or {}).get(group, {}).get(directory))}
                for directory in directories
            ],
        }
        for group, directories in roles.items()
    ]


def _from_environment(name: str) -> str:
    """What Ansible looks up in our process: so no value of a secret is in a playbook."""
    return f"{{{{ lookup('ansible.builtin.env', '{VARIABLE}{name}') }}}}"


def _given(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if not variables:
        return {}
    secrets = {name: secret_of(value) for name, value in variables.items()}
    return {
        "vars": {
            name: value if (secret := secrets[name]) is None else _from_environment(secret)
            for name, value in variables.items()
        }
    }


def known_lines(hosts: Iterable[RoleHost]) -> list[str]:
    """Lines of a file of known hosts: each is known by the key that we know it by, and by no other one."""
    return list(
        dict.fromkeys(
            line
            for host in hosts
            for alias, keys in ((_alias(host), host.keys), (_jump_alias(host), host.jump_keys))
            for line in (f"{alias} {key}" for key in keys)
        )
    )


def settings_of(directory: Path, forks: int, root: str, roles_path: Sequence[Path]) -> dict[str, str]:
    """Variables of Ansible's process, with settings of its own.

    Args:
        directory: of this call, with a short path: there are sockets in it.
        forks: machines that are worked at together.
        root: of what is ours on the nodes.
        roles_path: where roles find those that they depend on.
    """
    return {
        "ANSIBLE_CONFIG": str(directory / "ansible.cfg"),
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_FORKS": str(forks),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_LOCAL_TEMP": str(directory / "tmp"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_REMOTE_TEMP": f"{root}/ansible",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_ROLES_PATH": ":".join(map(str, roles_path)),
        "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=30s",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(directory / "s"),
        "ANSIBLE_TIMEOUT": "20",
        "ANSIBLE_VERBOSITY": "2",  # from there on it says where each task stands
    }


def _variables(host: RoleHost, known_hosts: Path) -> dict[str, Any]:
    target = host.target
    options = _options(target, _alias(host), known_hosts)
    if target.jump is not None:
        way = ["ssh", *_options(target.jump, _jump_alias(host), known_hosts)]
        way += ["-p", str(target.jump.port), "-l", target.jump.login, "-W", "%h:%p", target.jump.address]
        options += ["-o", f"ProxyCommand={shlex.join(way)}"]
    found = {
        "ansible_host": target.address,
        "ansible_port": target.port,
        "ansible_user": target.login,
        "ansible_connection": "ssh",
        "ansible_ssh_common_args": shlex.join(options),
        "ansible_python_interpreter": host.python,
        "private": host.private,
        "trainmaster_members": list(host.members),
        "trainmaster_gpus": host.gpus,
    }
    if target.key is not None:
        found["ansible_ssh_private_key_file"] = str(target.key)
    return found


def _options(target: Target, alias: str, known_hosts: Path) -> list[str]:
    agent = {"IdentityAgent": "none"} if target.key is not None else {}
    return ["-F", "/dev/null", *target.openssh(alias, known_hosts, {**_CLOSED, **agent})]


def _alias(host: RoleHost) -> str:
    return f"node-{host.name.lower()}"


def _jump_alias(host: RoleHost) -> str:
    return f"jump-{host.name.lower()}"
