"""The engines' command lines, and what is fed to a container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.executors.base import Container, Sandbox
from trainmaster.executors.containers import command_line

DOCKER = {"program": "/bin/docker", "kind": "docker", "rootless": False, "image": "i:1", "mounts": ["/a"]}
PODMAN = {**DOCKER, "program": "/bin/podman", "kind": "podman"}


def command(container, **options):
    values = {
        "name": "n",
        "labels": {"home": "/h"},
        "cwd": "/a/code",
        "gpu_ids": (),
        "user": (1000, 100),
        "groups": [100, 27],
    }
    return command_line.run_command(container, **{**values, **options})


def test_as_the_caller_in_the_same_places():
    found = command(DOCKER)
    assert found[:2] == ["/bin/docker", "run"]
    assert {"--rm", "--interactive", "--user=1000:100", "--group-add=27", "--workdir=/a/code"} <= set(found)
    assert {"--network=host", "--ipc=host", "--pull=never", "--log-driver=none"} <= set(found)
    assert "--group-add=100" not in found
    assert found[found.index("--mount") + 1] == "type=bind,source=/a,target=/a"
    assert found[found.index("--label") + 1] == "trainmaster.home=/h"
    assert found[-5:] == ["--entrypoint=bash", "i:1", "-c", command_line.PROCESS_1, "trainmaster"]


@pytest.mark.parametrize(
    ("container", "user", "options"),
    [
        ({**DOCKER, "rootless": True}, (1000, 100), {"--user=0:0"}),
        ({**PODMAN, "rootless": True}, (1000, 100), {"--user=1000:100", "--userns=keep-id"}),
        (PODMAN, (0, 0), {"--user=0:0"}),
        (DOCKER, (0, 0), {"--user=0:0"}),
    ],
)
def test_files_belong_to_the_caller(container, user, options):
    found = command(container, user=user, groups=[user[1]])
    assert {each for each in found if each.startswith(("--user", "--group-add"))} == options


APPTAINER = {**DOCKER, "program": "/bin/apptainer", "kind": "apptainer", "settings": {"HOME": "/h"}}


def test_apptainer_is_a_program_with_an_image_that_is_a_file(tmp_path):
    found = command(APPTAINER)
    assert found[:2] == ["/bin/apptainer", "--silent"]
    assert {"--cleanenv", "--contain", "--no-home", "--pwd=/a/code", "--workdir=/tmp/n"} <= set(found)
    assert found[found.index("--mount") + 1] == "type=bind,source=/a,target=/a"
    assert found[-5:-2] == ["/h/.apptainer/cache/trainmaster/i:1.sif", "bash", "-c"]
    assert not {"--nv", "--rocm"} & set(found)
    assert {"--nv", "--rocm"} & set(command(APPTAINER, gpu_ids=["1"]))
    file = tmp_path / "my.sif"
    for has, shown in (
        (False, f"/h/.apptainer/cache/trainmaster/{str(file).replace('/', '%2F')}.sif"),
        (True, file),
    ):
        if has:
            file.touch()
        assert command({**APPTAINER, "image": str(file)})[-5] == str(shown)


def test_enroot_is_a_program_whose_container_has_its_own_processes(tmp_path):
    enroot = {**APPTAINER, "program": "/bin/enroot", "kind": "enroot"}
    found = command(enroot)
    assert found[:4] == ["/usr/bin/env", "enroot-nsenter", "--user", "--mount"]
    assert found[8:12] == ["/bin/enroot", "/tmp/n", "/h/.cache/enroot/trainmaster/i:1.sqsh", "/a/code"]
    assert {"/a:/a:none:x-create=dir,rbind,rw", "NVIDIA_VISIBLE_DEVICES=void"} <= set(found)
    assert {"NVIDIA_VISIBLE_DEVICES=all"} <= set(command(enroot, gpu_ids=["1"]))


def sandboxed(container, **fields):
    sandbox = Sandbox(65534, 65534, readable=("/code",), writable=("/code/out",), processes=99, **fields)
    values = {name: container[name] for name in ("program", "kind", "rootless", "image")}
    return Container(**values, sandbox=sandbox).message()


def test_a_filter_is_for_those_that_others_have_sent():
    for container in (sandboxed(PODMAN), PODMAN):
        found = command(container, filter_file="/a/f.json")
        assert ("--security-opt=seccomp=/a/f.json" in found) == ("sandbox" in container)
    rules = json.loads(command_line.system_calls())["syscalls"]
    refused = {name: rule.get("args") for rule in rules for name in rule["names"]}
    assert refused["mount"] is None
    assert refused["clone"] == refused["unshare"] != refused["clone3"]


def test_in_a_sandbox_nothing_is_of_this_machine():
    found = command(sandboxed(PODMAN, memory_bytes=2**30, cpus=2))
    assert {"--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(found)
    assert {"--user=65534:65534", "--pids-limit=99", "--cpus=2", "--memory=1073741824b"} <= set(found)
    assert not {"--network=host", "--ipc=host", "--pids-limit=-1"} & set(found)
    assert not [each for each in found if each.startswith(("--userns", "--group-add"))]
    mounts = [found[place + 1] for place, each in enumerate(found) if each == "--mount"]
    assert mounts == [
        "type=bind,source=/code,target=/code,readonly",
        "type=bind,source=/code/out,target=/code/out",
    ]
    assert found[-4] == "i:1"


def test_members_of_a_sandbox_have_one_network_of_their_own():
    found = command(sandboxed(DOCKER, has_peers=True), network="holder")
    assert found[:2] == ["/bin/bash", "-uc"]
    assert found[4:7] == ["/bin/docker", "holder", "i:1"]
    assert {"--network=none", "--cap-drop=ALL", "--user=65534:65534"} <= set(found[7].split())
    assert "--network=container:holder" in found[8:]


def test_shared_memory_is_the_machines_where_that_is_enough(monkeypatch):
    monkeypatch.setattr(command_line, "shared_bytes", lambda: 2**30)
    assert "--ipc=host" in command({**DOCKER, "shm_bytes": 2**30})
    found = command({**DOCKER, "shm_bytes": 2**31})
    assert "--shm-size=2147483648b" in found
    assert "--ipc=host" not in found
    asked = {**sandboxed(PODMAN), "shm_bytes": 5}
    assert "--shm-size=5b" in command(asked)
    assert "--shm-size=1g" in command(sandboxed(PODMAN))


def test_gpus():
    """Docker's value is a line of comma-separated values, so several ids need quotes of their own."""
    found = command(DOCKER, gpu_ids=("1", "3"))
    assert found[found.index("--gpus") + 1] == '"device=1,3"'
    found = command(PODMAN, gpu_ids=("1", "GPU-8f"))
    assert {"--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=GPU-8f"} <= set(found)
    assert "--gpus" not in found
    for container in (DOCKER, PODMAN):
        assert not [each for each in command(container) if "gpu" in each]


def test_any_path_can_be_mounted():
    found = command({**DOCKER, "mounts": ['/a,b "c":d']})
    assert found[found.index("--mount") + 1] == 'type=bind,"source=/a,b ""c"":d","target=/a,b ""c"":d"'


def test_values_are_in_no_command_line():
    data = command_line.records(["-c", "--", "echo", "main"], {"TOKEN": "a\nb=c \udcff", "EMPTY": ""})
    assert data == b"-c\0--\0echo\0main\0\0TOKEN=a\nb=c \xff\0EMPTY=\0"


def test_names_differ_where_letters_do_not():
    names = {
        command_line.container_name(home, attempt, member)
        for home in ("/h", "/i")
        for attempt in ("r/a b/0/1", "r/a-b/0/1", f"r/{'x' * 300}/0/1")
        for member in ("worker-0", "worker-1")
    }
    assert len(names) == 12
    for name in names:
        assert len(name) < 128
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def test_removing_does_not_wait():
    assert command_line.remove_command(DOCKER, ["n", "m"]) == [
        "/bin/docker",
        "rm",
        "--force",
        "--volumes",
        "n",
        "m",
    ]
    assert "--time=0" in command_line.remove_command(PODMAN, ["n"])


#: Starts a program as an engine's monitor does: what its descendants leave behind comes to it.
MONITOR = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
first = subprocess.Popen(["bash", "-c", *sys.argv[1:]])
while True:
    pid, status = os.wait()
    if pid == first.pid:
        sys.exit(os.waitstatus_to_exitcode(status))
"""


#: A script that leaves something behind, which does this when it is asked to end.
LEFT = """trap "%s" TERM; echo $$; while :; do sleep 600 & wait; done"""
LEAVING = f"exec 3< <(setsid bash -c '{LEFT}'); read -r deaf <&3"


class Monitored:
    """Process 1 of a container that is not number 1: the engine shows it the processes of its node."""

    def __init__(self, script: str) -> None:
        program = command_line.PROCESS_1.replace("-rt 0.05", "-rt 0.001")  # its 2 s are a tenth of that
        command = [sys.executable, "-c", MONITOR, program, "trainmaster"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self.process.stdin is not None
        self.process.stdin.write(command_line.records(["-c", "--", script, "main"], {"WORD": "yes"}))
        self.process.stdin.close()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            said = output.read().decode()
        return self.process.wait(), said

    def first(self) -> int:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def lives(pid: int) -> bool:
    """Whether there is more of it than an entry in a table."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


NO_CHILDREN = not Path(f"/proc/self/task/{os.getpid()}/children").exists()


@pytest.mark.skipif(NO_CHILDREN, reason="this kernel does not list children")
class TestProcessesOfTheNodeInSight:
    @pytest.fixture
    def stranger(self) -> Iterator[subprocess.Popen[bytes]]:
        """Another process of the same user."""
        with subprocess.Popen(["sleep", "600"]) as process:
            yield process
            assert process.poll() is None, "it was ended, too"
            process.kill()

    def test_what_the_script_leaves_is_asked_to_end(self, stranger: subprocess.Popen[bytes]) -> None:
        code, said = Monitored(f"{LEAVING % 'echo asked >&2; exit'}; echo $WORD; exit 3").end()
        assert (code, said.split()) == (3, ["yes", "asked"])

    def test_a_stop_reaches_all_and_nothing_else(self, stranger: subprocess.Popen[bytes]) -> None:
        found = Monitored("trap 'echo saved; exit 4' TERM; setsid sleep 600 & echo $!; wait; wait")
        orphan = int(found.line())
        os.kill(found.first(), signal.SIGTERM)
        assert found.end() == (4, "saved\n")
        assert not lives(orphan)

    def test_what_does_not_listen_is_ended(self, stranger: subprocess.Popen[bytes]) -> None:
        code, deaf = Monitored(f"{LEAVING % ''}; echo $deaf").end()
        assert (code, lives(int(deaf))) == (0, False)
