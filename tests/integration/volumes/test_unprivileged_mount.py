"""Mounting as a user who may not mount: through fusermount3, in a mount namespace with a device for all."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trainmaster.volumes.mounting import available

if problem := available():
    pytest.skip(problem, allow_module_level=True)
if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "fusermount3"))):
    pytest.skip("needs root, unshare, setpriv and fusermount3", allow_module_level=True)

pytestmark = pytest.mark.timeout(60)
NOBODY = 65534

# All of it ends with the namespaces, whatever happens in them.
AS_USER = r"""
set -e
mount --bind "$WORK/fuse" /dev/fuse
if [ -n "$HIDDEN" ]; then  # the interpreter lies below a directory that only root may enter
    mkdir "$WORK/base"
    mount --bind "$BASE" "$WORK/base"
    mount -t tmpfs -o mode=755 none "$HIDDEN"
    mkdir -p "$BASE"
    mount --bind "$WORK/base" "$BASE"
fi
cd "$WORK/home"
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$PYTHON" -c "$PROGRAM"
"""

PRELUDE = """
import contextlib, os, signal, subprocess, sys, time
from pathlib import Path
from trainmaster.volumes.mounting import mount, mounts, provide, unmount
from trainmaster.volumes.packed.pushing import push
assert os.geteuid() == 65534
home, place = Path.cwd(), Path.cwd() / "mnt"
(home / "src/d").mkdir(parents=True)
(home / "src/d/a b").write_bytes(b"hello")
(home / "src/mine").write_bytes(b"x" * 300_000)
(home / "src/mine").chmod(0o600)
uri = push(home / "src", str(home / "store/v")).uri

def servers():
    found = []
    for entry in Path("/proc").iterdir():
        words = []
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # a process that has ended since, such as fusermount3
                words = (entry / "cmdline").read_bytes().split(b"\\0")
        if b"trainmaster.volumes.mounting.server" in words:
            found.append((int(entry.name), words[3].decode()))
    return found

def gone():
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not mounts.is_ours(str(place)) and not servers():
            return True
        time.sleep(0.02)
    return False

def same():
    return (place / "d/a b").read_bytes() == b"hello" and (place / "mine").read_bytes() == b"x" * 300_000
"""


@pytest.fixture
def as_user():
    """Runs a program as a user with nothing but a device for FUSE."""
    # Not below pytest's own directory, which only its user may enter.
    work = Path(tempfile.mkdtemp(prefix="trainmaster-user-"))
    work.chmod(0o755)
    (work / "home").mkdir()
    os.chown(work / "home", NOBODY, NOBODY)
    device = work / "fuse"

    def run(program: str, mode: int = 0o666) -> str:
        os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
        device.chmod(mode)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "HOME": str(work / "home"),
            "TRAINMASTER_CACHE": str(work / "home/cache"),
            "WORK": str(work),
            "HIDDEN": _hidden(Path(sys.base_prefix)),
            "BASE": sys.base_prefix,
            "PYTHON": sys.executable,
            "PROGRAM": PRELUDE + program,
        }
        unshare = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc"
        done = subprocess.run(
            [*unshare.split(), "bash", "-c", AS_USER],
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    shutil.rmtree(work)


def _hidden(path: Path) -> str:
    for directory in [*path.parents[::-1], path]:
        if not directory.stat().st_mode & stat.S_IXOTH:
            return str(directory)
    return ""


def test_there_and_gone_again(as_user):
    out = as_user("""
assert mount(uri, place) == uri and same()
line = next(line for line in open("/proc/mounts") if str(place) in line)
assert "user_id=65534" in line and "ro," in line, line
assert unmount(place) and gone()
assert list(place.iterdir()) == []
print("done")
""")
    assert out == "done\n"


@pytest.mark.parametrize("roles", [["serve"], ["guard"], ["guard", "serve"]], ids=" and ".join)
def test_killed(as_user, roles):
    out = as_user(
        f"""
roles = {roles}
mount(uri, place)
assert same()
"""
        + """
for pid in [pid for role in roles for pid, its in servers() if its == role]:
    with contextlib.suppress(ProcessLookupError):  # a server ends when its guard is gone
        os.kill(pid, signal.SIGKILL)
if len(roles) == 1:
    assert gone(), servers()
while mounts.is_ours(str(place)) and not mounts.is_dead(str(place)):
    time.sleep(0.02)
mount(uri, place)
assert same() and unmount(place) and gone()
print("done")
"""
    )
    assert out == "done\n"


def test_a_device_that_is_not_for_all(as_user):
    out = as_user(
        """
print(provide(uri, place), place.is_symlink(), same())
""",
        mode=0o600,
    )
    assert out == "fetched True True\n"
