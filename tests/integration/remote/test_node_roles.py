"""Ansible's roles on three hosts over real SSH: one fails, one hangs, and each host gets its roles once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainmaster.cluster.roles.node_roles import NodeRoles
from trainmaster.spec.errors import UsageError
from trainmaster.testing.private_sshd import SshHost
from trainmaster.testing.roles_here import RoleHosts
from trainmaster.transport.ssh import Ssh

pytestmark = [
    pytest.mark.skipif(find_spec("ansible") is None, reason="ansible-core is not installed"),
    pytest.mark.timeout(900),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "tf-ps"
_FAILING = """\
- name: tell
  ansible.builtin.copy:
    content: "{{ private }} {{ groups['worker'] | length }} {{ token | default(lookup('env', 'NONE')) }}"
    dest: "{{ place }}/{{ inventory_hostname }}"
    mode: "0600"
- name: needs a driver
  ansible.builtin.shell: echo no such driver >&2; echo $TOKEN; test {{ inventory_hostname }} != i-1
"""


def start(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh, count: int = 3
) -> tuple[RoleHosts, list[SshHost]]:
    hosts = [new_host(f"h{number}") for number in range(count)]
    return RoleHosts(tmp_path, [(host.target, str(host.place / "node")) for host in hosts], ssh), hosts


def test_a_role_comes_to_each_host_once_and_what_fails_is_named(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    cluster, _ = start(tmp_path, new_host, ssh)
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
        assert all(Path(node.root, "roles", "state.json").exists() for _, node in cluster.members)
        assert "hunter22" not in cluster.log
        assert '"stdout": "***"' in cluster.log
        said = cluster.log
        again = NodeRoles(cluster.files, cluster.home.run_directory("r-1"))  # as a next driver
        cluster.roles, _ = again, cluster.roles.close()
        cluster.play(everywhere=(base,))
        assert cluster.log == said
    finally:
        cluster.close()


@pytest.mark.crossings  # when one comes again is decided in `test_role_state.py`
def test_a_role_has_its_variables_and_comes_again_when_they_change(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    cluster, _ = start(tmp_path, new_host, ssh, count=1)
    try:
        said = tmp_path / "said"
        text = "{{ node_type }} {{ num_gpu + 1 }} {{ key | length }} {{ lists | join(',') }}"
        task = f'- name: tell\n  ansible.builtin.copy: {{content: "{text}", dest: {said}, mode: "0600"}}\n'
        base = cluster.write("base", task)
        given = {"node_type": "ps", "num_gpu": 0, "key": {"secret": "TOKEN"}, "lists": ["a", "b"]}
        cluster.play(everywhere=(base,), variables={"all": {base: given}})
        assert said.read_text() == "ps 1 8 a,b"
        cluster.play(everywhere=(base,), variables={"all": {base: {**given, "num_gpu": 1}}})
        assert said.read_text() == "ps 2 8 a,b"
        assert "hunter22" not in cluster.log
        with pytest.raises(UsageError, match="'num_gpu' is undefined"):
            cluster.play(everywhere=(base,), variables={"all": {base: {"node_type": "ps"}}})
    finally:
        cluster.close()


def test_a_role_that_hangs_is_ended_and_a_collection_that_is_missing_is_named(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    cluster, _ = start(tmp_path, new_host, ssh, count=1)
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
        assert not _marked(mark)
    finally:
        cluster.close()


def test_what_a_driver_that_was_killed_has_left_is_ended_before_roles_run_again(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    cluster, hosts = start(tmp_path, new_host, ssh, count=1)
    try:
        begun, ended = tmp_path / "begun", tmp_path / "ended"
        base = cluster.write("base", f"- ansible.builtin.shell: echo $$ >> {begun}; sleep 3000\n")
        told = [
            {"name": h.name, "port": h.port, "login": h.target.login, "key": str(h.key), "root": node.root}
            for h, (_, node) in zip(hosts, cluster.members, strict=True)
        ]
        program = [sys.executable, "-m", "trainmaster.testing.roles_here"]
        driver = subprocess.Popen([*program, json.dumps([str(tmp_path), base, told])])
        try:
            deadline = time.monotonic() + 300
            while not (begun.exists() and begun.read_text().endswith("\n")):
                assert driver.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            driver.kill()
            driver.wait()
        left = int(begun.read_text())
        assert Path(f"/proc/{left}").exists()  # on the machine it goes on without its login
        mark = f"TRAINMASTER_ROLES={cluster.home.run_directory('r-1')}".encode()
        assert _marked(mark)
        # one that init has not waited for yet has ended all the same
        alive = f"grep -qs '^State:.[^XZ]' /proc/{left}/status"
        cluster.write("base", f'- ansible.builtin.shell: "{alive} || echo once >> {ended}"\n')
        cluster.play(everywhere=(base,))
        assert ended.read_text() == "once\n"
        assert not _marked(mark)
    finally:
        cluster.close()


@pytest.mark.crossings  # it is the example that is tested, no way of its own
def test_the_example_installs_what_suits_a_machine(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh
) -> None:
    """With packages that are as good as empty, and not where all users of this machine would find them."""
    cluster, _ = start(tmp_path, new_host, ssh, count=1)
    packages, environment = tmp_path / "packages", tmp_path / "tensorflow"
    packages.mkdir()
    for name, version in (("tensorflow_cpu", "2.21.0"), ("scikit_learn", "1.0")):
        parts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        with zipfile.ZipFile(packages / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for part, text in parts.items():
                wheel.writestr(f"{name}-{version}.dist-info/{part}", text)
    try:
        shutil.copytree(EXAMPLE / "roles", cluster.code / "roles")
        defaults = cluster.code / "roles" / "tensorflow" / "defaults" / "main.yml"
        defaults.write_text(defaults.read_text().replace("/var/tmp/tensorflow", str(environment)))
        offline = {"PIP_FIND_LINKS": str(packages), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
        cluster.play(env=offline, everywhere=("roles/tensorflow",))
        there = {entry.name for entry in environment.glob("lib/*/site-packages/*.dist-info")}
        assert there >= {"tensorflow_cpu-2.21.0.dist-info", "scikit_learn-1.0.dist-info"}
    finally:
        cluster.close()


def _marked(mark: bytes) -> list[Path]:
    return [entry for entry in Path("/proc").glob("[0-9]*/environ") if mark in _read(entry).split(b"\0")]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
