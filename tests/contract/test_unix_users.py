"""What a hostile task of one team gets of the machine and of another team, and what honest ones keep.

The real executor, real Unix users, which are made here and removed again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from test_local_executor import end_everything

from trainmaster.control.task.isolation import Isolation
from trainmaster.executors.base import UNIX_USER, Capacity, Container, GangRequest, MemberRequest, Phase
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.executors.telemetry.logs import read_log
from trainmaster.testing.waits import until

if os.geteuid() != 0 or shutil.which("useradd") is None:
    pytest.skip("making Unix users needs root and useradd", allow_module_level=True)

RUN = f"escapes-{secrets.token_hex(3)}"
#: As of a server: whose Python may lie there.
HIDDEN = (Path("~root").expanduser(),)
MEMORY_BYTES = 192 << 20
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
#: Of Python: says what a system call is answered with.
CALL = """\
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    code = libc.syscall(*arguments)
    if code == 0 and arguments[0] in CLONES: os._exit(0)
    print("did it" if code >= 0 else errno.errorcode[ctypes.get_errno()], flush=True)
CLONES = (56, 220, 435)
"""
#: By name, on x86-64 and on 64-bit ARM.
NUMBERS = {
    "mount": (165, 40), "umount2": (166, 39), "unshare": (272, 97), "clone": (56, 220), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "userfaultfd": (323, 282), "chroot": (161, 51), "pivot_root": (155, 41),
    "open_by_handle_at": (304, 265), "ptrace": (101, 117), "setuid": (105, 146),
    "io_uring_setup": (425, 425), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "clone3": (435, 435), "mount_setattr": (442, 442),
}  # fmt: skip
NEW_USERS, NEW_NAMES, SIGCHLD = 0x10000000, 0x20000, 17
#: A namespace of users by the numbers that 32-bit programs have: `mov eax,310; mov ebx,flag; int 0x80`.
OLD_NUMBERS = """\
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("53b836010000bb00000010cd805bc3"))
start = ctypes.addressof(ctypes.c_char.from_buffer(page))
code = ctypes.CFUNCTYPE(ctypes.c_int)(start)()
print("did it" if code >= 0 else errno.errorcode[-code])
"""
#: Leaves something wherever all users of a machine may: files, a segment, messages, semaphores.
LEAVE = """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.umask(0)
for place in ("/dev/shm", "/run/lock", "/tmp", "/var/tmp"):
    if os.path.isdir(place):
        with open(place + "/left-{word}", "w") as file: file.write("hello")
        os.chmod(place + "/left-{word}", 0o666)
key = 0x{word}
segment = libc.shmget(key, 4096, 0o1666)
libc.shmat.restype = ctypes.c_void_p
ctypes.memmove(libc.shmat(segment, None, 0), b"hello", 5)
assert libc.msgget(key, 0o1666) >= 0 and libc.semget(key, 1, 0o1666) >= 0
queues = ctypes.CDLL("librt.so.1", use_errno=True)
assert queues.mq_open(b"/left-{word}", 0o102, 0o666, None) >= 0
print("left")
"""
FIND = """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for place in ("/dev/shm", "/run/lock", "/tmp", "/var/tmp", "/dev/mqueue"):
    if os.path.isdir(place): print(*(place + "/" + name for name in os.listdir(place) if "left" in name))
key = 0x{word}
print(*("found " + what for what, code in (("memory", libc.shmget(key, 0, 0)),
    ("messages", libc.msgget(key, 0)), ("semaphores", libc.semget(key, 0, 0))) if code >= 0))
queues = ctypes.CDLL("librt.so.1", use_errno=True)
if queues.mq_open(b"/left-{word}", 0) >= 0: print("found queue")
print("looked")
"""


class Machine:
    """An executor, and two teams' users."""

    def __init__(self, root):
        self.home, self.attempts = root / "home", root / "attempts"
        self.attempts.mkdir()
        self.word = secrets.token_hex(3)
        self.executor = LocalExecutor(self.home)
        self.users = []
        self.count = 0

    def user(self, team):
        name = f"tmtest-{team}{self.word}"
        if name not in self.users:
            subprocess.run(["useradd", "--system", "--no-create-home", name], check=True)
            self.users.append(name)
        return pwd.getpwnam(name)

    def close(self):
        self.executor.close()
        end_everything(self.home)
        for name in self.users:
            subprocess.run(["userdel", "--force", name], check=False)

    def submit(self, team, *scripts, memory_bytes=MEMORY_BYTES, processes=64, options=None):
        """An attempt of a team, with a member per script."""
        self.count += 1
        user = self.user(team)
        directory = self.attempts / str(self.count)
        names = [f"worker-{index}" for index in range(len(scripts))]
        for name in names:
            (directory / "scratch" / name).mkdir(parents=True)
            os.chown(directory / "scratch" / name, user.pw_uid, user.pw_gid)
        isolation = Isolation(user.pw_uid, user.pw_gid, user=user.pw_name, hidden=(self.home, *HIDDEN))
        seen = isolation.sandbox([directory, Path(sys.prefix), Path(sys.base_prefix)])
        sandbox = replace(
            seen, scratch=str(directory / "scratch"), memory_bytes=memory_bytes, processes=processes
        )
        settings = isolation.base_environment()
        container = Container("", sys.executable, UNIX_USER, settings=settings, sandbox=sandbox)
        members = [
            MemberRequest(
                name, script, str(directory), container=container, env=(options or {}).get(name, {})
            )
            for name, script in zip(names, scripts, strict=True)
        ]
        gang = GangRequest(
            f"{RUN}/main/0/{self.count}", str(directory), tuple(members), 1, RUN, 4, grace_s=2.0
        )
        self.executor.submit([gang])
        return gang

    def state(self, gang):
        (status,) = self.executor.observe([gang.attempt])
        return status

    def wait(self, gang, phase=Phase.EXITED):
        until(lambda: self.state(gang).phase == phase, f"{gang.attempt} is {phase}", 120)
        return self.state(gang)

    def text(self, gang, name="worker-0"):
        return read_log(Path(gang.directory), name, 0).data.decode()

    def python(self, team, script, **options):
        """What a program of a team says."""
        gang = self.submit(team, f"exec {PYTHON} - <<'END'\n{script}\nEND", **options)
        self.wait(gang)
        return self.text(gang)

    def says(self, team, script, **options):
        gang = self.submit(team, f"{script} 2>&1 || true", **options)
        self.wait(gang)
        return self.text(gang)

    def groups(self):
        """Control groups of attempts of this test."""
        return [path for top in ("memory", "pids", ".") for path in _below(top) if RUN in path.name]


def _below(top):
    place = Path("/sys/fs/cgroup") / top
    with contextlib.suppress(OSError):
        for path, folders, _ in os.walk(place):
            yield from (Path(path) / name for name in folders if name.startswith("trainmaster-"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    found = Machine(tmp_path_factory.mktemp("machine"))
    found.executor.open(RUN, Capacity(slots=4), dict(os.environ))
    try:
        yield found
    finally:
        found.close()


def number(name):
    try:
        return NUMBERS[name][["x86_64", "aarch64"].index(platform.machine())]
    except ValueError:
        pytest.skip("the numbers of this architecture's system calls are not written down here")


#: Those that training has no use for, with what a task is told.
REFUSED = [
    ("unshare", (NEW_USERS,), "EPERM"),
    ("unshare", (NEW_USERS | NEW_NAMES,), "EPERM"),
    ("unshare", (NEW_NAMES,), "EPERM"),
    ("clone", (NEW_USERS | SIGCHLD, 0, 0, 0, 0), "EPERM"),
    ("clone3", (0, 0), "ENOSYS"),
    ("setns", (0, NEW_USERS), "EPERM"),
    ("mount", (0, 0, 0, 0, 0), "EPERM"),
    ("umount2", (b"/proc", 2), "EPERM"),
    ("pivot_root", (b"/", b"/"), "EPERM"),
    ("chroot", (b"/tmp",), "EPERM"),
    ("open_tree", (-100, b"/", 1), "EPERM"),
    ("move_mount", (-1, b"/", -100, b"/", 0), "EPERM"),
    ("fsopen", (b"tmpfs", 0), "EPERM"),
    ("open_by_handle_at", (0, 0, 0), "EPERM"),
    ("bpf", (0, 0, 0), "EPERM"),
    ("perf_event_open", (0, 0, -1, -1, 0), "EPERM"),
    ("keyctl", (0, -3, 1), "EPERM"),
    ("add_key", (b"user", b"a", b"b", 1, -3), "EPERM"),
    ("request_key", (b"user", b"a", 0, -3), "EPERM"),
    ("userfaultfd", (1,), "EPERM"),
    ("io_uring_setup", (1, 0), "EPERM"),
    ("setuid", (0,), "EPERM"),
]


def test_system_calls_that_training_has_no_use_for_are_refused(machine):
    """In one process: to start one as a team's user takes a quarter of a second of a core."""
    calls = "".join(f"call({number(name)}, *{arguments!r})\n" for name, arguments, _ in REFUSED)
    answers = machine.python("red", f"{CALL}{calls}").splitlines()
    told = [(name, arguments, said) for (name, arguments, _), said in zip(REFUSED, answers, strict=True)]
    assert told == REFUSED


def test_a_process_of_its_own_is_started_as_ever(machine):
    said = machine.python("red", f"{CALL}call({number('clone')}, {SIGCHLD}, 0, 0, 0, 0)")
    assert said.strip() == "did it"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has other numbers, too")
def test_numbers_of_another_architecture_lead_around_nothing(machine):
    assert machine.python("red", f"{CALL}{OLD_NUMBERS}").split() == ["ENOSYS"]
    assert machine.python("red", f"{CALL}call(0x40000000 | 272, {NEW_USERS})").split() == ["ENOSYS"]


ESCAPES = {
    "to be root in a namespace": ("unshare --user --map-root-user id", "Operation not permitted"),
    "to become another user": ("su -s /bin/sh -c id nobody </dev/null", "su:"),
    "to take a limit back": ("ulimit -u 100000", "Operation not permitted"),
    "to be killed later than the server": ("echo -1000 >/proc/self/oom_score_adj", "Permission denied"),
    "to say what crashes start": ("echo '|/tmp/x' >/proc/sys/kernel/core_pattern", "denied"),
    "to leave its control group": ("echo $$ >/sys/fs/cgroup/memory/cgroup.procs", "denied|No such"),
    "to make a device": ("mknod /tmp/disk b 254 0", "Operation not permitted"),
    "to read the journal of the supervisor": ("cat HOME/supervisor/journal", "No such file"),
    "to see processes of others": ("ls -d /proc/1", "No such file"),
    "to end the supervisor": ("kill -9 SUPERVISOR", "No such process|not permitted"),
}


@pytest.mark.parametrize("what", ESCAPES)
def test_a_task_gets_nothing_by_trying(machine, what):
    script, answers = ESCAPES[what]
    known = script.replace("HOME", str(machine.home)).replace(
        "SUPERVISOR", str(machine.executor.supervisor_pid)
    )
    said = machine.says("red", f"({known})")
    assert any(answer in said for answer in answers.split("|")), said
    assert "uid=0" not in said


def test_it_has_no_capabilities_and_gets_none(machine):
    said = machine.says("red", "grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status")
    found = dict(line.split(":", 1) for line in said.splitlines())
    for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[name], 16) == 0, (name, said)
    assert (found["NoNewPrivs"].strip(), found["Seccomp"].strip()) == ("1", "2")


def test_nothing_is_left_in_shared_memory_for_another_team_or_the_next_attempt(machine):
    holding = machine.submit("red", f"{PYTHON} - <<'END'\n{LEAVE.format(word=machine.word)}\nEND\nsleep 60")
    until(lambda: "left" in machine.text(holding), "it has left something", 60)
    for team in ("blue", "red"):
        assert machine.python(team, FIND.format(word=machine.word)).split() == ["looked"]
    machine.executor.stop(holding.attempt, 0.0)
    machine.wait(holding)
    assert machine.python("red", FIND.format(word=machine.word)).split() == ["looked"]
    for place in ("/dev/shm", "/run/lock", "/dev/mqueue", "/tmp", "/var/tmp"):
        assert not list(Path(place).glob(f"left-{machine.word}*"))
    assert not _in_ipc(machine.word)


def test_members_of_an_attempt_share_memory(machine):
    word = machine.word
    waits = f"until [ -e /dev/shm/left-{word} ]; do sleep 0.05; done; sleep 1"
    look = FIND.format(word=word)
    gang = machine.submit(
        "red",
        f"{PYTHON} - <<'END'\n{LEAVE.format(word=word)}\nEND\nuntil [ -e /dev/shm/seen ]; do sleep 0.1; done",
        f"{waits}\n{PYTHON} - <<'END'\n{look}\nEND\ntouch /dev/shm/seen",
    )
    assert all(member.exit_code == 0 for member in machine.wait(gang).members)
    said = machine.text(gang, "worker-1").split()
    assert {f"/dev/shm/left-{word}", "queue", "memory", "messages", "semaphores"} <= set(said)
    assert f"/tmp/left-{word}" not in said


def test_nothing_is_left_when_supervisor_and_members_are_killed(machine):
    gang = machine.submit("red", f"{PYTHON} - <<'END'\n{LEAVE.format(word=machine.word)}\nEND\nsleep 600")
    until(lambda: "left" in machine.text(gang), "it has left something", 60)
    os.kill(machine.executor.supervisor_pid, signal.SIGKILL)
    machine.executor.changes(0.0)
    assert machine.wait(gang).members[0].lost
    assert not list(Path("/dev/shm").glob(f"left-{machine.word}*"))
    assert not _in_ipc(machine.word)
    until(lambda: not machine.groups(), "its control groups are gone", 20)


def _in_ipc(word):
    """What of System V the machine's own namespace has under a key."""
    texts = [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "msg", "sem")]
    return [line for text in texts for line in text.splitlines() if line.split()[0] == str(int(word, 16))]


FILL = """\
import os, sys
try:
    with open({path!r}, "wb") as file:
        for _ in range(1024): file.write(bytes(1 << 20)); file.flush()
except OSError as error:
    print(error.strerror, os.path.getsize({path!r}) >> 20)
else:
    print("all of it")
"""


def test_shared_memory_is_bounded(machine):
    """By its size, or by the control group, which comes first as Python itself takes some."""
    gang = machine.submit("red", f"exec {PYTHON} - <<'END'\n{FILL.format(path='/dev/shm/large')}\nEND")
    status = machine.wait(gang)
    said = machine.text(gang)
    assert "all of it" not in said
    assert "No space left" in said or status.members[0].oom, said
    assert "No space left on device" in machine.python("red", FILL.format(path="/run/lock/large"))


@pytest.fixture
def limited(machine):
    """Only where control groups can be made."""
    gang = machine.submit("red", "sleep 60")
    machine.wait(gang, Phase.RUNNING)
    found = machine.groups()
    machine.executor.stop(gang.attempt, 0.0)
    machine.wait(gang)
    if not found:
        pytest.skip("no control groups can be made here")
    return machine


HUNGRY = {
    "of one process": "x = bytearray(1 << 30)",
    "of many": "for _ in range(8): os.fork()\nx = bytearray(32 << 20)\nimport time; time.sleep(5)",
    "of a file in memory": "f = os.memfd_create('x')\nfor _ in range(1024): os.write(f, bytes(1 << 20))",
}


@pytest.mark.parametrize("what", HUNGRY)
def test_memory_is_bounded_and_the_task_is_told(limited, what):
    script = f"exec {PYTHON} - <<'END'\nimport os\n{HUNGRY[what]}\nEND"
    gang = limited.submit("red", script, processes=300)
    (member,) = limited.wait(gang).members
    assert member.exit_code != 0
    if what != "of many":
        assert member.oom
    until(lambda: not limited.groups(), "its control groups are gone", 20)


def test_a_fork_bomb_is_bounded_and_gone_with_its_attempt(limited):
    bomb = textwrap.dedent("""
        import os, sys, time
        most = 0
        for _ in range(3000):
            try:
                if os.fork() == 0:
                    os.setsid(); time.sleep(600)
                most += 1
            except OSError as error:
                print(error.strerror, most, flush=True)
                break
        else:
            print("all of them")
    """)
    gang = limited.submit("red", f"{PYTHON} - <<'END'\n{bomb}\nEND", processes=50)
    limited.wait(gang)
    *words, count = limited.text(gang).split()
    assert words[0] == "Resource"
    assert 30 < int(count) < 50
    uid = limited.user("red").pw_uid
    owners = [path.stat().st_uid for path in Path("/proc").iterdir() if path.name.isdigit() and path.exists()]
    assert uid not in owners


def test_processes_share_memory_as_ever(machine):
    script = textwrap.dedent("""
        import multiprocessing as mp, multiprocessing.shared_memory as shared
        def work(name, queue):
            found = shared.SharedMemory(name)
            queue.put(bytes(found.buf[:5])); found.close()
        if __name__ == "__main__":
            context = mp.get_context("fork")
            made = shared.SharedMemory(create=True, size=64); made.buf[:5] = b"hello"
            queue = context.Queue()
            each = context.Process(target=work, args=(made.name, queue)); each.start()
            print(queue.get(timeout=30).decode()); each.join()
            made.close(); made.unlink()
            with context.Pool(2) as pool: print(sum(pool.map(abs, range(100))))
    """)
    assert machine.python("red", script).split() == ["hello", "4950"]


LEARN = """\
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
def main():
    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(64.0).reshape(64, 1))
    total = sum(batch.sum() for batch, in DataLoader(data, batch_size=8, num_workers=2))
    dist.all_reduce(total)
    print("total", int(total), flush=True)
    dist.destroy_process_group()
main()
"""


@pytest.mark.crossings  # that processes share memory and find each other is above, without PyTorch
def test_data_loaders_and_gangs_work(machine):
    pytest.importorskip("torch")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    options = {
        f"worker-{rank}": {
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }
        for rank in range(2)
    }  # fmt: skip
    script = f"exec {sys.executable} - <<'END'\n{LEARN}\nEND"
    gang = machine.submit("red", script, script, memory_bytes=4 << 30, processes=500, options=options)
    status = machine.wait(gang)
    said = machine.text(gang)
    assert all(member.exit_code == 0 for member in status.members), (said, status)
    assert said.split()[-2:] == ["total", str(2 * sum(range(64)))]
