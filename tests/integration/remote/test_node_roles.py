"""Ansible's roles on three hosts over real SSH: one fails, one hangs, and each host gets its roles once."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from private_sshd import PYTHON, SshHost

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.node_files import NodeFiles
from trainmaster.cluster.roles.node_roles import NodeRoles
from trainmaster.control.layout import AttemptPlace, Home
from trainmaster.spec import Experiment
from trainmaster.spec.errors import UsageError
from trainmaster.spec.roles import Roles
from trainmaster.transport import Ssh

pytestmark = [
    pytest.mark.skipif(find_spec("ansible") is None, reason="ansible-core is not installed"),
    pytest.mark.timeout(900),
]
_FAILING = """\
- name: tell
  ansible.builtin.copy:
    content: "{{ private }} {{ groups['worker'] | length }} {{ token | default(lookup('env', 'NONE')) }}"
    dest: "{{ place }}/{{ inventory_hostname }}"
    mode: "0600"
- name: needs a driver
  ansible.builtin.shell: echo no such driver >&2; echo $TOKEN; test {{ inventory_hostname }} != i-1
"""


class Cluster:
    """Three hosts, and an attempt on them."""

    def __init__(self, tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh) -> None:
        self.home = Home.from_environment(
            {"TRAINMASTER_HOME": str(tmp_path / "home"), "TRAINMASTER_CACHE": str(tmp_path / "cache")}
        )
        self.code = self.home.code_directory("r-1")
        self.code.mkdir(parents=True)
        self.place = AttemptPlace(tmp_path / "attempt")
        self.place.directory.mkdir()
        self.files = NodeFiles()
        self.members: list[tuple[str, NodeAccess]] = []
        for number in range(3):
            host = new_host(f"h{number}")
            with ssh.connection(host.target):  # its key is pinned, as a bootstrap would have done
                pass
            plan = SimpleNamespace(host_python=SimpleNamespace(path=PYTHON))
            result: Any = SimpleNamespace(plan=plan, facts=None)
            root = str(host.place / "node")
            access = NodeAccess(
                f"worker-{number}", f"i-{number}", f"10.0.0.{number}", host.target, result, root, ssh
            )
            self.members.append((f"worker-{number}", access))
        self.roles = NodeRoles(self.files, self.home.run_directory("r-1"))

    def write(self, name: str, tasks: str) -> str:
        place = self.code / "roles" / name / "tasks"
        place.mkdir(parents=True, exist_ok=True)
        (place / "main.yml").write_text(tasks)
        return f"roles/{name}"

    def play(self, timeout_s: float = 600.0, **roles: tuple[str, ...]) -> None:
        experiment = Experiment(
            name="train", command="true", secrets=("TOKEN",), roles=Roles(timeout_s=timeout_s, **roles)
        )
        context: Any = SimpleNamespace(
            experiment=experiment,
            home=self.home,
            run="r-1",
            place=self.place,
            variables={"TOKEN": "hunter22"},
            masked=lambda said: said,
        )
        self.roles.play(self.members, context)

    @property
    def log(self) -> str:
        return self.place.log("roles").read_text()

    def close(self) -> None:
        self.roles.close()
        self.files.close()


def test_a_role_comes_to_each_host_once_and_what_fails_is_named(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    cluster = Cluster(tmp_path, new_host, ssh)
    try:
        (tmp_path / "said").mkdir()
        tasks = _FAILING.replace("{{ place }}", str(tmp_path / "said"))
        base = cluster.write("base", tasks)
        with pytest.raises(UsageError) as failed:
            cluster.play(everywhere=(base,))
        assert "h1 (127.0.0.1:" in failed.value.args[0]
        assert "(roles/base/tasks/main.yml:6): non-zero return code: no such driver" in failed.value.args[0]
        assert "h0" not in failed.value.args[0]
        assert (tmp_path / "said" / "i-2").read_text().startswith("10.0.0.2 3")

        cluster.write("base", tasks.replace("test {{ inventory_hostname }} != i-1", "true"))
        cluster.play(everywhere=(base,))
        assert all(list(Path(node.root, "roles").iterdir()) for _, node in cluster.members)
        assert "hunter22" not in cluster.log
        assert '"stdout": "***"' in cluster.log
        said = cluster.log
        again = NodeRoles(cluster.files, cluster.home.run_directory("r-1"))  # as a next driver
        cluster.roles, _ = again, cluster.roles.close()
        cluster.play(everywhere=(base,))
        assert cluster.log == said
    finally:
        cluster.close()


def test_a_role_that_hangs_is_ended_and_a_collection_that_is_missing_is_named(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    cluster = Cluster(tmp_path, new_host, ssh)
    try:
        lacks = cluster.write("lacks", "- some.thing.needed:\n    state: present\n")
        with pytest.raises(
            UsageError, match=r"roles/lacks/tasks/main.yml:1: .*some\.thing\.needed"
        ) as lacking:
            cluster.play(everywhere=(lacks,))
        assert "ansible-galaxy collection install some.thing" in lacking.value.hint
        hangs = cluster.write("hangs", "- ansible.builtin.command: sleep 3000\n")
        with pytest.raises(UsageError, match="not done after 5 s"):
            cluster.play(timeout_s=5.0, everywhere=(hangs,))
        mark = f"TRAINMASTER_ROLES={cluster.home.run_directory('r-1')}".encode()
        left = [entry for entry in Path("/proc").glob("[0-9]*/environ") if mark in _read(entry).split(b"\0")]
        assert not left
    finally:
        cluster.close()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
