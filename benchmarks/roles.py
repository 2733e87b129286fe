"""Roles on four hosts against ``ansible-playbook`` by hand: the same role, the same SSH servers, in turn.

By hand means an inventory and a playbook of a few lines, with pipelining and SSH multiplexing. Ours is what
a run does when its machines have come: hash the role, ask the machines, write inventory and playbook, run
Ansible, note it on the machines. Each round has a role that changed. Run it with
`python benchmarks/roles.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from common import machine, options, paired

from trainmaster.control.checks.ansible import find_program
from trainmaster.testing.private_sshd import PYTHON, SshHost, make_key
from trainmaster.testing.roles_here import RoleHosts
from trainmaster.transport.host_keys import HostKeys
from trainmaster.transport.ssh import Ssh, SshSettings

TASKS = """\
- ansible.builtin.file: {{path: "{place}/{{{{ private }}}}", state: absent}}
- ansible.builtin.shell: echo "round {number}" > "{place}/{{{{ inventory_hostname }}}}"
- ansible.builtin.command: echo done
"""


def main() -> None:
    """Print medians and ratios as JSON."""
    found = options(__doc__ or "", hosts=4, rounds=3)
    with tempfile.TemporaryDirectory(prefix="tm-roles-") as top, contextlib.ExitStack() as stack:
        work = Path(top)
        make_key(work / "key")
        hosts = []
        for number in range(found.hosts):
            (work / f"h{number}").mkdir()
            hosts.append(SshHost(work / f"h{number}", f"h{number}", work / "key"))
            hosts[-1].start()
            stack.callback(hosts[-1].stop)
        keys = HostKeys(work / "tm-home" / "known_hosts")
        ssh = stack.enter_context(Ssh(keys, SshSettings(connect_timeout_s=60.0, command_timeout_s=120.0)))
        cluster = RoleHosts(work, [(host.target, str(host.place / "node")) for host in hosts], ssh)
        stack.callback(cluster.close)
        lines = [
            f"i-{number} ansible_host=127.0.0.1 ansible_port={host.port} private=10.0.0.{number} "
            f"ansible_python_interpreter={PYTHON} ansible_ssh_private_key_file={host.key}"
            for number, host in enumerate(hosts)
        ]
        (work / "inventory").write_text("\n".join(lines))
        rounds = iter(range(1000))
        again: list[float] = []

        def change() -> str:
            return cluster.write("base", TASKS.format(number=next(rounds), place=work))

        def ours() -> float:
            role = change()
            began = time.perf_counter()
            cluster.play(everywhere=(role,))
            took_s = time.perf_counter() - began
            began = time.perf_counter()
            cluster.play(everywhere=(role,))
            again.append(time.perf_counter() - began)
            return took_s

        def by_hand() -> float:
            role = change()
            play = [{"hosts": "all", "roles": [str(cluster.code / role)]}]
            (work / "play.json").write_text(json.dumps(play))
            env = {
                **os.environ,
                "ANSIBLE_FORKS": str(found.hosts),
                "ANSIBLE_HOST_KEY_CHECKING": "False",
                "ANSIBLE_PIPELINING": "True",
                "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=30s",
                "ANSIBLE_SSH_CONTROL_PATH_DIR": tempfile.mkdtemp(dir=work, prefix="s"),
            }
            command = [find_program("ansible-playbook"), "-i", str(work / "inventory")]
            began = time.perf_counter()
            subprocess.run(
                [*command, str(work / "play.json")], env=env, check=True, stdout=subprocess.DEVNULL
            )
            return time.perf_counter() - began

        result = paired(found.rounds, ours, by_hand)
        result["nothing_to_do_s"] = round(min(again), 4)
        result |= {"hosts": found.hosts, "machine": machine()}
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
