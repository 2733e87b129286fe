"""Hosts on this machine that get roles, in tests and benchmarks; as a program, a driver to be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.files import NodeFiles
from trainmaster.cluster.roles.node_roles import NodeRoles
from trainmaster.control.task.layout import AttemptPlace, Home
from trainmaster.spec import Experiment
from trainmaster.spec.roles import Roles
from trainmaster.testing.private_sshd import PYTHON
from trainmaster.transport.base import Target
from trainmaster.transport.host_keys import HostKeys
from trainmaster.transport.ssh import Ssh, SshSettings


class RoleHosts:
    """Hosts, and an attempt on them.

    Args:
        tmp_path: home, code and logs lie here.
        hosts: by which targets they are reached, and where what is ours lies on them.
        ssh: connects.
    """

    def __init__(self, tmp_path: Path, hosts: Sequence[tuple[Target, str]], ssh: Ssh) -> None:
        self.home = Home.from_environment(
            {"TRAINMASTER_HOME": str(tmp_path / "home"), "TRAINMASTER_CACHE": str(tmp_path / "cache")}
        )
        self.code = self.home.code_directory("r-1")
        self.code.mkdir(parents=True, exist_ok=True)
        self.place = AttemptPlace(tmp_path / "attempt")
        self.place.directory.mkdir(exist_ok=True)
        self.files = NodeFiles()
        self.members: list[tuple[str, NodeAccess]] = []
        for number, (target, root) in enumerate(hosts):
            with ssh.connection(target):  # its key is pinned, as a bootstrap would have done
                pass
            plan = SimpleNamespace(host_python=SimpleNamespace(path=PYTHON))
            result: Any = SimpleNamespace(plan=plan, facts=None)
            access = NodeAccess(
                f"worker-{number}", f"i-{number}", f"10.0.0.{number}", target, result, root, ssh
            )
            self.members.append((f"worker-{number}", access))
        self.roles = NodeRoles(self.files, self.home.run_directory("r-1"))

    def write(self, name: str, tasks: str) -> str:
        """A role with these tasks; what the recipe calls it."""
        place = self.code / "roles" / name / "tasks"
        place.mkdir(parents=True, exist_ok=True)
        (place / "main.yml").write_text(tasks)
        return f"roles/{name}"

    def play(
        self,
        timeout_s: float = 600.0,
        env: Mapping[str, str] | None = None,
        **roles: Any,  # noqa: ANN401 - fields of `Roles`
    ) -> None:
        """Give the hosts roles, as an attempt would."""
        experiment = Experiment(
            name="train", command="true", secrets=("TOKEN",), roles=Roles(timeout_s=timeout_s, **roles)
        )
        context: Any = SimpleNamespace(
            experiment=experiment,
            home=self.home,
            run="r-1",
            place=self.place,
            variables={"TOKEN": "hunter22", **(env or {})},
            masked=lambda said: said,
        )
        self.roles.play(self.members, context)

    @property
    def log(self) -> str:
        """What Ansible has said."""
        return self.place.log("roles").read_text()

    def close(self) -> None:
        """Give back what it holds here."""
        self.roles.close()
        self.files.close()


def main(tmp_path: str, name: str, hosts: list[dict[str, Any]]) -> None:
    """Give hosts a role."""
    settings = SshSettings(connect_timeout_s=60.0, command_timeout_s=120.0)
    with Ssh(HostKeys(Path(tmp_path, "tm-home", "known_hosts")), settings) as ssh:
        targets = [
            (Target(h["name"], "127.0.0.1", h["port"], h["login"], Path(h["key"])), h["root"]) for h in hosts
        ]
        hosts_here = RoleHosts(Path(tmp_path), targets, ssh)
        try:
            hosts_here.play(everywhere=(name,))
        finally:
            hosts_here.close()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
