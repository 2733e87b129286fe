# ruff: noqa: F811 - fixtures are imported
# ruff: noqa: PTH103, PTH118, PTH120, PTH123 - names are bytes
"""A mounted volume as unmodified programs meet it, and what is left of one that was killed."""

import errno
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from reading_helpers import (  # noqa: F401 - fixtures
    CHUNK,
    contents,
    home,
    kernel_can,
    pictures,
    python,
    wait_until,
)

from trainmaster.spec.errors import UsageError
from trainmaster.volumes.mounting import (
    InUseError,
    MountError,
    available,
    lifecycle,
    mount,
    provide,
    provided,
    unmount,
    withdraw,
)
from trainmaster.volumes.mounting.kernel import new_record
from trainmaster.volumes.mounting.mounts import detach, is_dead, is_ours, means_of, mounted_at
from trainmaster.volumes.mounting.server import command
from trainmaster.volumes.packed.pushing import push

if problem := available():
    pytest.skip(problem, allow_module_level=True)

pytestmark = pytest.mark.timeout(60)
SERVER = "trainmaster.volumes.mounting.server"
TRAINMASTER = str(Path(sys.executable).with_name("trainmaster"))


@pytest.fixture
def volume(home, pictures):
    return push(home / "src", "pets", chunk_limit_bytes=CHUNK).uri


@pytest.fixture
def place(tmp_path):
    """Where to mount; whatever a test does, nothing stays."""
    directory = tmp_path / "mnt"
    yield directory
    for process in processes(directory):
        process.kill()
    while is_ours(str(directory)):
        assert detach(str(directory))


@pytest.fixture
def served(volume, place):
    """Answered by a process, whatever is in the cache."""
    mount(volume, place, means="fuse")
    return place


@pytest.fixture(params=["fuse", "kernel"])
def mounted(volume, place, request):
    """Each way to mount: what programs meet is the same."""
    if request.param == "kernel" and not kernel_can():
        pytest.skip("needs root, loop devices and EROFS")
    mount(volume, place, means=request.param)
    assert means_of(str(place)) == request.param
    return place


def processes(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if SERVER in line and str(directory) in line:
            found.append(process)
    return found


def one(directory: Path, role: str) -> psutil.Process:
    return next(process for process in processes(directory) if role in process.cmdline())


def run(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def gone(directory: Path) -> bool:
    return not is_ours(str(directory)) and not processes(directory)


def test_programs_see_local_files(mounted, home, pictures):
    assert contents(mounted) == pictures
    assert run("diff", "-r", str(home / "src"), str(mounted)).returncode == 0
    assert run("cmp", str(home / "src/large.bin"), str(mounted / "large.bin")).returncode == 0
    assert run("grep", "-rlF", "find me", str(mounted)).stdout.strip() == f"{mounted}/notes with spaces.txt"
    found = run("find", str(mounted), "-type", "f", "-name", "*.bin").stdout.split("\n")
    assert len([name for name in found if name]) == 121
    assert (mounted / "link").read_bytes() == pictures["train/cat/001.bin"]
    sizes = run("du", "-b", "-s", str(mounted)).stdout
    assert int(sizes.split()[0]) >= sum(map(len, pictures.values()))


def test_an_image_folder(mounted, pictures):
    samples = [
        (path.read_bytes(), kind.name)
        for kind in sorted((mounted / "train").iterdir())
        for path in sorted(kind.iterdir())
    ]
    assert len(samples) == 120
    assert samples[60][0] == pictures["train/dog/000.bin"]
    with (mounted / "large.bin").open("rb") as file:
        file.seek(CHUNK - 5)
        assert file.read(10) == pictures["large.bin"][CHUNK - 5 : CHUNK + 5]


def test_names_that_are_no_text(home, place):
    tree = {
        b"new\nline": b"1",
        b"caf\xe9 \xff\xfe.png": b"2",
        b"x" * 255: b"3",
        b"d " + b"y" * 250 + b"/\t\"'\\": b"4",
        b"/".join([b"z" * 200] * 8): b"5",
    }
    top = os.fsencode(home / "src")
    for name, data in tree.items():
        path = os.path.join(top, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    mount(push(home / "src", "odd", chunk_limit_bytes=CHUNK).uri, place)
    found = {}
    for directory, _, names in os.walk(os.fsencode(place)):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                found[os.path.relpath(file.name, os.fsencode(place))] = file.read()
    assert {name: found.get(name) for name in tree} == tree
    assert run("diff", "-r", str(home / "src"), str(place)).returncode == 0


@pytest.mark.timeout(120)
@pytest.mark.crossings  # programs that read files see local ones: above
def test_tensorflow_reads_it(served, pictures):
    if find_spec("tensorflow") is None:
        pytest.skip("needs TensorFlow")
    program = (
        "import sys, tensorflow as tf\n"
        "names = tf.data.Dataset.list_files(sys.argv[1] + '/train/*/*.bin', shuffle=True, seed=1)\n"
        "files = names.map(lambda name: (name, tf.io.read_file(name)), num_parallel_calls=4)\n"
        "total = 0\n"
        "for name, data in files.as_numpy_iterator(): total += len(data)\n"
        "print(total)"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program, str(served)],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment,
        check=False,
    )
    expected = sum(len(data) for path, data in pictures.items() if path.startswith("train/"))
    assert done.stdout.strip() == str(expected), done.stderr


def test_it_is_read_only(mounted):
    for change in (
        lambda: (mounted / "new").write_text("x"),
        lambda: (mounted / "empty").unlink(),
        lambda: (mounted / "empty").chmod(0o777),
        lambda: (mounted / "empty").rename(mounted / "full"),
        lambda: (mounted / "train/more").mkdir(),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says it
            change()
        assert caught.value.errno == errno.EROFS


def test_reading_again_asks_nobody(served, pictures):
    contents(served)
    server = one(served, "serve")
    server.suspend()  # what is asked now would not answer
    try:
        # Not Python's open(): it asks each file whether it is a terminal, which the kernel passes on.
        program = (
            "import os, sys; f = os.open(sys.argv[1], os.O_RDONLY); size = os.fstat(f).st_size\n"
            "data = os.read(f, size); os.close(f); print(len(data))"
        )
        reader = python(program, served / "large.bin")
        wait_until(lambda: reader.poll() is not None)
        assert reader.communicate()[0] == f"{len(pictures['large.bin'])}\n"
    finally:
        server.resume()


def test_unmounting_leaves_nothing_behind(mounted, home):
    assert unmount(mounted)
    wait_until(lambda: gone(mounted))
    assert list(mounted.iterdir()) == []
    assert list((home / "cache/mounts").iterdir()) == []
    assert not unmount(mounted)


def test_unmounting_while_somebody_reads(mounted, pictures):
    with (mounted / "large.bin").open("rb") as file:
        assert file.read(10) == pictures["large.bin"][:10]
        assert unmount(mounted)
        assert not is_ours(str(mounted))
        assert file.read(10) == pictures["large.bin"][10:20]
    wait_until(lambda: gone(mounted))


def test_sigterm_ends_a_mount(mounted):
    one(mounted, "guard").terminate()
    wait_until(lambda: gone(mounted))
    assert list(mounted.iterdir()) == []


@pytest.mark.parametrize("role", ["serve", "guard"])
def test_a_mount_whose_process_is_killed_is_taken_away(mounted, role):
    one(mounted, role).kill()
    wait_until(lambda: gone(mounted))
    assert list(mounted.iterdir()) == []


def test_readers_of_a_killed_mount_get_an_error(served):
    server = one(served, "serve")
    server.suspend()
    path = str(served / "train/dog/001.bin")
    reader = python(f"open({path!r}, 'rb').read()")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.3)  # it waits for the server
        server.kill()
        assert reader.wait(10) != 0
        assert "Errno" in reader.stderr.read()
    finally:
        reader.kill()
        reader.communicate()


def test_what_a_crash_left_is_cleared_by_the_next_mount(served, volume, pictures):
    assert contents(served) == pictures  # the kernel remembers all that it was told
    guard, server = one(served, "guard"), one(served, "serve")
    guard.suspend()
    server.kill()
    wait_until(lambda: is_dead(str(served)))
    guard.kill()
    wait_until(lambda: not processes(served))
    assert is_ours(str(served))
    mount(volume, served)
    assert contents(served) == pictures


def test_what_goes_wrong_in_a_mount_ends_its_process(served, home):
    # The tables are cut behind its back: it cannot go on, and must not let its readers hang.
    (table,) = (path for path in (home / "cache/volumes/tables").iterdir() if path.is_dir())
    for column in table.iterdir():
        os.truncate(column, 0)
    assert run("cat", str(served / "train/dog/005.bin")).returncode != 0
    wait_until(lambda: gone(served))


def test_a_chunk_that_is_missing_is_an_error_of_that_file_only(served, home, pictures):
    (served / "notes with spaces.txt").read_bytes()
    for chunk in (home / "store/volumes/pets/chunks").rglob("*"):
        if chunk.is_file():
            chunk.unlink()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says it
        (served / "large.bin").read_bytes()
    assert caught.value.errno == errno.EIO
    assert (served / "notes with spaces.txt").read_bytes() == pictures["notes with spaces.txt"]
    assert "is missing" in "".join(log.read_text() for log in (home / "cache/mounts").iterdir())


def test_in_the_foreground(volume, place):
    program = (
        "import sys; from pathlib import Path; from trainmaster.volumes.mounting import mount\n"
        "mount(sys.argv[1], Path(sys.argv[2]), foreground=True); print('ended')"
    )
    process = python(program, volume, place)
    wait_until(lambda: mounted_at(str(place)) is not None)
    assert (place / "empty").read_bytes() == b""
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "ended\n"
    wait_until(lambda: gone(place))


def test_who_is_interrupted_leaves_no_mount(volume, place, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mount(volume, place)
    assert gone(place)
    assert not place.exists()


def test_who_is_killed_while_mounting_leaves_no_mount(volume, place):
    """It is mounted, and its server is about to say so: the pipe is full until the caller ends."""
    caller = python(
        """
import os, sys, threading
from contextlib import suppress
from pathlib import Path
from trainmaster.volumes.mounting import lifecycle, mount

def full(*arguments):
    ready = arguments[4]
    os.set_blocking(ready, False)
    with suppress(BlockingIOError):
        while True:
            os.write(ready, bytes(512))
    os.set_blocking(ready, True)
    return command(*arguments)

command, lifecycle.command = lifecycle.command, full
lifecycle._answer = lambda *_: threading.Event().wait()
mount(sys.argv[1], Path(sys.argv[2]))
""",
        volume,
        place,
    )
    wait_until(lambda: mounted_at(str(place)) is not None)
    assert processes(place)
    caller.kill()
    caller.communicate()
    wait_until(lambda: gone(place))


def test_without_its_guard_no_server_begins(volume, place):
    place.mkdir()
    record = new_record()
    line = [*command("serve", volume, str(place), "", -1, "fuse", record), "1"]
    done = subprocess.run(line, pass_fds=[record], stdin=subprocess.DEVNULL, timeout=20, check=False)
    os.close(record)
    assert done.returncode == 0
    assert not is_ours(str(place))


def test_the_words_of_a_server_that_crashed(volume, place, monkeypatch):
    monkeypatch.setattr(lifecycle, "available", lambda: None)
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "/nowhere/libfuse.so")
    with pytest.raises(
        MountError, match=r"its process ended\. \(.*nowhere.*\)\n.* are in (.*)\.log"
    ) as caught:
        mount(volume, place, means="fuse")
    log = Path(str(caught.value).rpartition(" are in ")[2].removesuffix("."))
    assert "Traceback" in log.read_text()


def test_bad_places(served, volume, tmp_path):
    with pytest.raises(MountError, match=r"something is mounted there already.*\n.*volume unmount"):
        mount(volume, served)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(UsageError, match="is not empty"):
        mount(volume, tmp_path / "full")
    with pytest.raises(UsageError, match="is no directory"):
        mount(volume, tmp_path / "full/file")
    with pytest.raises(MountError, match="that is no volume"):
        unmount(Path("/proc"))


def test_another_version_takes_the_place_of_one_that_nobody_reads(volume, place, pictures, home):
    (home / "src" / "more").write_bytes(b"more")
    later = push(home / "src", "pets", chunk_limit_bytes=CHUNK).uri
    assert provide(volume, place) == "mounted"
    with (place / next(iter(pictures))).open("rb"), pytest.raises(InUseError, match="is still read there"):
        provide(later, place)
    assert contents(place) == pictures
    assert provide(later, place) == "mounted"
    assert contents(place) == {**pictures, "more": b"more"}
    assert (provided(later, place), provided(volume, place)) == ("mounted", None)


def test_provided_by_a_mount_or_fetched(volume, place, pictures, home, monkeypatch):
    assert provide(volume, place) == "mounted"
    assert contents(place) == pictures
    assert withdraw(place)
    wait_until(lambda: gone(place))
    monkeypatch.setattr("trainmaster.volumes.mounting.lifecycle.available", lambda: "no FUSE here")
    assert provide(volume, place) == "fetched"
    assert place.is_symlink()
    assert contents(place.resolve()) == pictures
    assert provide(volume, place) == "fetched"
    assert withdraw(place)
    assert not place.exists()
    assert not withdraw(place)


def test_the_command_line(volume, place, home):
    done = run(TRAINMASTER, "volume", "mount", "pets", str(place))
    assert done.returncode == 0, done.stderr
    assert (place / "empty").exists()
    assert run(TRAINMASTER, "volume", "unmount", str(place)).returncode == 0
    done = run(TRAINMASTER, "volume", "mount", "pets", str(place), "--means", "fuse", "--json")
    assert json.loads(done.stdout) == {"uri": volume, "directory": str(place), "means": "fuse"}
    assert run(TRAINMASTER, "volume", "unmount", str(place)).returncode == 0
    assert run(TRAINMASTER, "volume", "unmount", str(place)).returncode == 2
    missing = run(TRAINMASTER, "volume", "mount", "nope", str(place))
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr
    wait_until(lambda: gone(place))
