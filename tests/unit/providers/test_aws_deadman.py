"""The dead-man switch, run for real by `sh` in a directory that stands for the machine."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainmaster.lab.user_data import plan_boot
from trainmaster.providers.aws.requests import AwsRequestBuilder, host_key_answers, resolved
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.base import NodeRequest
from trainmaster.providers.dead_man_switch import (
    LEASE_FUNCTIONS,
    SELF_DELETION_FAILS,
    deadman_script,
    end_command,
    renewal_command,
    self_deletion_commands,
)
from trainmaster.testing.waits import until

USER = "root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")
SHELLS = [shell for shell in ("sh", "dash", "bash --posix", "busybox sh") if shutil.which(shell.split()[0])]


class Machine:
    """A directory instead of ``/``, programs that only write down their calls, and a clock of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run" / "trainmaster"
        self.lease = self.run / "lease"
        self.calls = root / "calls"
        self.programs = root / "programs"
        for directory in ("proc", "dev", "run", "var/lib", "etc/systemd/system"):
            (root / directory).mkdir(parents=True)
        self.programs.mkdir()
        for name in ("shutdown", "poweroff", "halt", "systemctl"):
            self.program(name)
        self.at(100)

    def program(self, name: str, exit_code: int = 0) -> None:
        path = self.programs / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.calls}\nexit {exit_code}\n')
        path.chmod(0o755)

    def at(self, uptime_s: float) -> None:
        draft = self.root / "proc" / ".uptime"
        draft.write_text(f"{uptime_s:.2f} 1234.56\n")
        draft.replace(self.root / "proc" / "uptime")

    def boot(self, lease_s: float = 30, force_after_s: float = 60, shell: str = "sh") -> None:
        """Run the user data; it must return at once."""
        script = deadman_script(
            lease_s,
            USER,
            tick_s=0.02,
            force_after_s=force_after_s,
            directory=str(self.run),
            machine=str(self.root),
        )
        self.shell([*shell.split(), "-c", script], check=True)

    def shell(self, command: list[str] | str, check: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            shell=isinstance(command, str),
            env={"PATH": f"{self.programs}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def renew(self, lease_s: float) -> bool:
        return self.shell(renewal_command(lease_s, str(self.run), str(self.root))).returncode == 0

    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def is_watched(self) -> bool:
        try:
            return b"deadman" in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False

    @property
    def pid(self) -> int:
        try:
            return int((self.run / "deadman.pid").read_text())
        except (OSError, ValueError):
            return 0

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, f"asked: {self.asked()}, there: {sorted(self.run.glob('*'))}", 120)

    def stays(self) -> None:
        """Some turns of the loop later it has not ended."""
        turns: set[str] = set()  # each has a `sleep` of its own
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")

        def is_over() -> bool:
            turns.update(children.read_text().split())
            return len(turns) > 5

        until(is_over, "its turns", 120)
        assert self.is_watched()
        assert self.asked() == []


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    if found.pid and found.is_watched():
        os.killpg(os.getpgid(found.pid), signal.SIGKILL)


@pytest.mark.parametrize("shell", SHELLS)
def test_nobody_renews(machine: Machine, shell: str) -> None:
    machine.boot(30, shell=shell)
    machine.until(machine.is_watched)
    assert machine.lease.read_text() == "130\n"
    machine.at(129.9)
    machine.stays()
    machine.at(131.2)
    machine.until(machine.asked)
    assert machine.asked() == ["shutdown -h now"]
    assert "nobody has renewed" in (machine.root / "var/lib/trainmaster/deadman.log").read_text()


@pytest.mark.parametrize("code", [0, 1])
def test_what_was_brought_deletes_it_first(machine: Machine, code: int) -> None:
    """It is off in any case afterwards."""
    machine.boot(30)
    machine.until(machine.is_watched)
    is_there, bring = (
        each.replace("sudo -n ", "").replace("/var/lib", f"{machine.root}/var/lib")
        for each in self_deletion_commands("s-1")
    )
    assert machine.shell(is_there).returncode
    never = subprocess.run(bring, shell=True, input=b"#!/usr/bin/env python9\n# s-1\n", capture_output=True)
    assert never.returncode == SELF_DELETION_FAILS
    assert b"python9" in never.stderr
    assert machine.shell(is_there).returncode
    script = f'#!/bin/sh\n# s-1\ntest "$1" && exit; echo deleted >> {machine.calls}; exit {code}'
    subprocess.run(bring, shell=True, input=script.encode(), check=True)
    assert not machine.shell(is_there).returncode
    assert (machine.root / "var/lib/trainmaster/ending").stat().st_mode & 0o777 == 0o700
    machine.at(131)
    machine.until(lambda: len(machine.asked()) > 1)
    assert machine.asked() == ["deleted", "shutdown -h now"]


def test_a_renewal_counts_from_when_it_is_made(machine: Machine) -> None:
    machine.boot(30)
    machine.until(machine.is_watched)
    machine.at(120)
    assert machine.renew(60)
    assert machine.lease.read_text() == "180\n"
    machine.at(179)
    machine.stays()
    assert machine.renew(5)  # shorter than what was left: it is the newest word that counts
    machine.at(186)
    machine.until(machine.asked)


def test_renewals_leave_nothing_half_written(machine: Machine) -> None:
    machine.boot(30)
    machine.until(machine.is_watched)
    for _ in range(20):
        assert machine.renew(100)
    assert sorted(path.name for path in machine.run.iterdir()) == ["deadman.pid", "lease"]
    machine.stays()


def test_the_file_is_removed(machine: Machine) -> None:
    machine.boot(3600)
    machine.until(machine.is_watched)
    assert machine.shell(end_command(str(machine.run))).returncode == 0
    machine.until(machine.asked)
    assert machine.asked() == ["shutdown -h now"]
    assert not machine.renew(60), "too late"


@pytest.mark.parametrize(
    "content", ["", "\n", "soon\n", "-5\n", "99999999999999999999\n", "1e9\n", "120 \x00\n"]
)
def test_what_is_no_number_changes_nothing(machine: Machine, content: str) -> None:
    machine.boot(30)
    machine.until(machine.is_watched)
    machine.lease.write_text(content)
    machine.stays()
    machine.at(131)
    machine.until(machine.asked)


def test_a_lease_for_ever_is_none(machine: Machine) -> None:
    machine.boot(30)
    machine.until(machine.is_watched)
    machine.lease.write_text(f"{10**9}\n")
    machine.stays()
    machine.at(131)
    machine.until(machine.asked)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("content", ["", "soon", "99999999999"])
def test_in_a_pod_or_an_allocation_it_changes_nothing_either(
    tmp_path: Path, shell: str, content: str
) -> None:
    """There an empty file ended all that ran, as if it had been removed, and any number counted."""
    turns = "lease_holds || exit 1; " * 3
    script = f"begin_lease 30; first=$until tick=.02; printf %s '{content}' > lease; {turns}"
    end = "rm lease; lease_holds && ! lease_holds || exit 2; [ $missing = 2 ] && [ $until = $first ]"
    command = f"dir=.\n{LEASE_FUNCTIONS}\n{script}\n{end}"
    done = subprocess.run([*shell.split(), "-c", command], cwd=tmp_path, check=False)
    assert done.returncode == 0


def test_a_shutdown_that_does_not_come(machine: Machine) -> None:
    machine.program("systemctl", 1)
    machine.program("poweroff", 1)
    machine.boot(30, force_after_s=0.05)
    machine.until(machine.is_watched)
    machine.at(200)
    trigger = machine.root / "proc" / "sysrq-trigger"
    machine.until(lambda: trigger.exists() and trigger.read_text() == "o\n")
    assert machine.asked() == ["shutdown -h now", "systemctl poweroff -ff", "poweroff -f", "halt -f -p"]


def test_a_renewal_before_the_script_ran_counts(machine: Machine) -> None:
    machine.run.mkdir()
    machine.lease.write_text("500\n")
    machine.boot(30)
    machine.until(machine.is_watched)
    machine.at(400)
    machine.stays()


def test_a_renewal_without_a_switch_fails(machine: Machine) -> None:
    assert not machine.renew(60)
    machine.boot(30)
    machine.until(machine.is_watched)
    assert machine.renew(60)
    os.killpg(os.getpgid(machine.pid), signal.SIGKILL)
    machine.until(lambda: not machine.is_watched())
    assert not machine.renew(60), "somebody has ended it: the machine would live for ever"


def test_with_systemd_it_is_a_service(machine: Machine) -> None:
    (machine.root / "run/systemd/system").mkdir(parents=True)
    machine.boot(30)
    assert machine.asked() == [
        "systemctl daemon-reload",
        "systemctl enable trainmaster-deadman.service",
        "systemctl start --no-block trainmaster-deadman.service",
    ]
    unit = (machine.root / "etc/systemd/system/trainmaster-deadman.service").read_text()
    assert f"ExecStart={machine.root}/var/lib/trainmaster/deadman\n" in unit
    assert "Restart=always" in unit
    assert not machine.is_watched()


def test_systemd_that_does_not_work(machine: Machine) -> None:
    (machine.root / "run/systemd/system").mkdir(parents=True)
    (machine.root / "var/lib/cloud/scripts/per-boot").mkdir(parents=True)
    machine.program("systemctl", 1)
    machine.boot(30)
    machine.until(machine.is_watched)
    again = machine.root / "var/lib/cloud/scripts/per-boot/trainmaster-deadman"
    assert os.access(again, os.X_OK)
    assert again.read_text().startswith("#!/bin/sh\n")


def test_it_is_user_data_for_cloud_init_and_for_the_lab() -> None:
    script = deadman_script(900, "admin")
    assert script.startswith("#!/bin/sh\n"), "cloud-init runs what begins so"
    assert len(script.encode()) < 16384, "more is refused by EC2"
    assert not re.search("@[A-Z]+@", script)
    renter = AwsRequestBuilder("f" * 32, AwsSettings())
    asked = NodeRequest("worker", 1, "m4.large", region="eu-west-1")
    told = resolved(
        renter.run("one", asked, "a", script).parameters,
        host_key_answers("-----BEGIN X-----\nAAAA\nBB==\n-----END X-----\n", "ssh-ed25519 CCCC"),
    )
    assert len(told["UserData"].encode()) < 16384, "more is refused by EC2"
    plan = plan_boot(told["UserData"].encode(), ["ssh-ed25519 AAAA"], "admin")
    assert plan.notes == []
    assert plan.host_keys == {
        "ssh_host_ed25519_key": (
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\nBB==\n-----END OPENSSH PRIVATE KEY-----\n"
        ),
        "ssh_host_ed25519_key.pub": "ssh-ed25519 CCCC",
    }
    (command,) = plan.commands
    encoded = re.search(r"echo (\S+) \| base64 -d", command)
    assert encoded
    assert base64.b64decode(encoded[1]).decode().strip() == script.strip()
    for shell in SHELLS:
        checked = subprocess.run(
            [*shell.split(), "-n"], input=script, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, ""), shell


@pytest.mark.parametrize("lease_s", [0, -1, 10**9, float("nan"), float("inf")])
def test_leases_that_are_none(lease_s: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        deadman_script(lease_s, "admin")
    with pytest.raises(ValueError, match="lease"):
        renewal_command(lease_s)


@pytest.mark.parametrize("user", ["", "a b", "$(reboot)", "-x", "Root;"])
def test_users_that_are_none(user: str) -> None:
    with pytest.raises(ValueError, match="user"):
        deadman_script(60, user)
