"""The programs that run on hosts, run here: half an archive, two at once, what somebody killed has left."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trainmaster.cluster.bootstrap.host_result import program_source
from trainmaster.testing.waits import until

BOOT = "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())).decode())"


def command(program: str, order: dict[str, Any]) -> bytes:
    source = program_source((program,))
    return b"%d\n%s%s\n" % (len(source), source, json.dumps(order).encode())


def start(env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-u", "-c", BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )


def run(
    program: str, order: dict[str, Any], more: bytes = b"", env: dict[str, str] | None = None
) -> tuple[int, list[str]]:
    with start(env) as process:
        out, err = process.communicate(command(program, order) + more, timeout=120)
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode().splitlines()


def order(root: Path, **changes: Any) -> dict[str, Any]:
    usual = {
        "root": str(root),
        "kind": "packages",
        "name": "n1",
        "inside": "site",
        "again": False,
        "wait_s": 5,
        "patience_s": 5,
        "members": 2,
    }
    return {**usual, **changes}


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


SOME = archive({"a/b.py": b"x = 1\n", "big": os.urandom(300_000)})
ONE = archive({"a/b.py": b"x = 1\n"})


def test_whole_and_once(tmp_path: Path) -> None:
    orders = order(tmp_path, files={"conf/x.cfg": "y\n"}, links={"bin/python": "/usr/bin/true"})
    assert run("install.py", orders, SOME) == (0, ["@@want", "@@done"])
    place = tmp_path / "packages" / "n1"
    assert (place / "site" / "a" / "b.py").read_bytes() == b"x = 1\n"
    assert (place / "conf" / "x.cfg").read_text() == "y\n"
    assert (place / "bin" / "python").readlink() == Path("/usr/bin/true")
    assert run("install.py", orders) == (0, ["@@have"])
    (place / "site" / "a" / "b.py").unlink()
    assert run("install.py", {**orders, "again": True}, SOME) == (0, ["@@want", "@@done"])
    assert (place / "site" / "a" / "b.py").exists()
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["n1"]


def test_what_is_here_already_is_linked_and_not_asked_for(tmp_path: Path) -> None:
    base, root = tmp_path / "base", tmp_path / "root"
    (base / "pkg").mkdir(parents=True)
    (base / "pkg" / "b.py").write_bytes(b"x = 1\n")
    (base / "one.py").write_bytes(b"y = 2\n")
    stamps = [
        (str(path.relative_to(base)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in (base / "pkg" / "b.py", base / "one.py")
    ]
    orders = order(root, tops={name: str(base / name) for name in ("pkg", "one.py")}, same=stamps)
    assert run("install.py", orders) == (0, ["@@linked"])
    site = root / "packages" / "n1" / "site"
    assert {path.name: path.readlink() for path in site.iterdir()} == {
        "pkg": base / "pkg",
        "one.py": base / "one.py",
    }
    assert run("install.py", orders) == (0, ["@@have"])
    # Broken, or not the same: sent as to anybody else.
    assert run("install.py", {**orders, "again": True, "same": []}, SOME) == (0, ["@@want", "@@done"])
    assert (base / "pkg" / "b.py").exists()
    os.utime(base / "one.py", ns=(1, 1))
    assert run("install.py", {**orders, "name": "n2"}, SOME) == (0, ["@@want", "@@done"])
    if os.getuid() != 0:
        return
    os.chown(base / "one.py", 4242, -1)  # somebody else's
    os.utime(base / "one.py", ns=(stamps[1][2], stamps[1][2]))
    assert run("install.py", {**orders, "name": "n3"}, SOME) == (0, ["@@want", "@@done"])


@pytest.mark.parametrize(
    "sent",
    [b"", SOME[:10], SOME[: len(SOME) // 2], ONE, b"no archive at all" * 100],
    ids=["nothing", "its header", "its first half", "one of two", "no archive"],
)
def test_half_an_archive_leaves_nothing(tmp_path: Path, sent: bytes) -> None:
    code, said = run("install.py", order(tmp_path), sent)
    assert code == 1
    assert said[-1].startswith("@@error the archive did not arrive whole")
    assert list((tmp_path / "packages").iterdir()) == []
    assert run("install.py", order(tmp_path), SOME)[0] == 0


def test_files_cannot_leave_their_directory(tmp_path: Path) -> None:
    code, said = run("install.py", order(tmp_path / "root"), archive({"../../../../escaped": b"x"}))
    assert code == 1, said
    assert not list(tmp_path.rglob("escaped"))


def test_silence_is_given_up(tmp_path: Path) -> None:
    with start() as process:
        assert process.stdin is not None
        process.stdin.write(command("install.py", order(tmp_path, patience_s=1)) + SOME[:1000])
        process.stdin.flush()
        assert process.wait(120) == 1
        assert process.stdout is not None
        assert b"nothing arrived for too long" in process.stdout.read()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    assert list((tmp_path / "packages").iterdir()) == []


def test_what_a_killed_one_has_left_is_cleared_away(tmp_path: Path) -> None:
    with start() as process:
        assert process.stdin is not None
        process.stdin.write(command("install.py", order(tmp_path)) + SOME[:250_000])
        process.stdin.flush()
        until(lambda: list(tmp_path.glob("packages/.partial-*/site/a/b.py")), "half of it", 120)
        process.send_signal(signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    assert list(tmp_path.glob("packages/.partial-*"))
    assert run("install.py", order(tmp_path), SOME) == (0, ["@@want", "@@done"])
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["n1"]


def test_somebody_else_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / "packages-n1").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, said = run("install.py", order(tmp_path, wait_s=1), SOME)
    assert (code, said) == (1, ["@@error somebody else has been installing packages for 1 s"])
    assert run("install.py", order(tmp_path), SOME)[0] == 0


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, said = run("install.py", order(tmp_path / "file" / "below"), SOME)
    assert code == 1
    assert said[-1].startswith("@@error ")
    assert str(tmp_path / "file") in said[-1]


def test_keys_come_and_go_and_the_users_own_stay(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    real = tmp_path / "dotfiles"
    real.write_text("# mine\nssh-rsa AAAA alice@home\n\nrestrict ssh-rsa BBBB trainmaster-cluster:other")
    real.chmod(0o640)
    (ssh / "authorized_keys").symlink_to(real)
    add = {
        "do": "add",
        "directory": str(tmp_path / "tm" / "clusters" / "c1"),
        "files": {"id_ed25519": "secret\n", "config": "Host *\n"},
        "mark": "trainmaster-cluster:c1",
        "line": "restrict ssh-ed25519 CCCC trainmaster-cluster:c1",
    }
    for line in ("CCCC", "DDDD"):
        assert run("keys.py", {**add, "line": add["line"].replace("CCCC", line)}, env=env) == (0, ["@@done"])
    lines = real.read_text().splitlines()
    assert lines[1] == "ssh-rsa AAAA alice@home"
    assert lines[3:] == [
        "restrict ssh-rsa BBBB trainmaster-cluster:other",
        "restrict ssh-ed25519 DDDD trainmaster-cluster:c1",
    ]
    assert real.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "tm" / "clusters" / "c1" / "id_ed25519").stat().st_mode & 0o777 == 0o600
    remove = {"do": "remove", "directory": add["directory"], "mark": add["mark"]}
    for _ in range(2):
        assert run("keys.py", remove, env=env) == (0, ["@@done"])
    assert real.read_text().splitlines()[-1].endswith("trainmaster-cluster:other")
    assert (ssh / "authorized_keys").is_symlink()
    assert not Path(str(add["directory"])).exists()


def placing(root: Path, **changes: Any) -> dict[str, Any]:
    usual = {
        "root": str(root),
        "run": "r1",
        "layer": "",
        "links": [],
        "folders": [],
        "python": "python3",
        "otherwise": sys.executable,
        "files": {"lib/ours.py": "x = 1\n"},
    }
    return {**usual, **changes}


def test_a_runs_place_is_made_once_and_left_as_it_is(tmp_path: Path) -> None:
    layer, root, programs = tmp_path / "layer", tmp_path / "root", tmp_path / "it's"
    (layer / "sub").mkdir(parents=True)
    (layer / "sub" / "a.py").write_text("y = 2\n")
    (layer / "sub" / "a.py").chmod(0o444)
    (layer / "link").write_text("what it leads to")
    (root / "runs" / "r1" / ".code.draft" / "half").mkdir(parents=True)
    root.chmod(0o755)
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    env = {"PATH": f":{tmp_path}:{programs}"}
    full = placing(root, layer=str(layer), links=[["link", "sub/a.py"], ["gone", "x"]], folders=["empty/one"])
    assert run("place.py", full, env=env) == (0, ["@@done"])
    code = root / "runs" / "r1" / "code"
    assert sorted(str(each.relative_to(code)) for each in code.rglob("*")) == [
        "empty", "empty/one", "gone", "link", "sub", "sub/a.py",
    ]  # fmt: skip
    assert (code / "link").readlink() == Path("sub/a.py")
    assert (code / "sub" / "a.py").stat().st_mode & 0o600 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / "tools").readlink() == programs
    said = subprocess.run([root / "bin" / "python", "-c", "print(6 * 7)"], capture_output=True, check=True)
    assert said.stdout == b"42\n"
    (code / "sub" / "a.py").write_text("z = 3\n")
    assert run("place.py", {**full, "python": sys.executable}) == (0, ["@@done"])
    assert (code / "sub" / "a.py").read_text() == "z = 3\n"
    assert (root / "tools").readlink() == Path(sys.executable).parent
    assert (root / "lib" / "ours.py").read_text() == "x = 1\n"


def test_no_place_is_made_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, said = run("place.py", placing(tmp_path / "file"))
    assert (code, said) == (
        1,
        [f"@@error {tmp_path}/file is there already and not a directory of this user: remove it"],
    )
    code, said = run("place.py", placing(tmp_path / "root", python="/none/python3"))
    assert (code, said) == (1, ["@@error there is no Python at /none/python3"])


def test_a_runs_place_takes_few_imports(tmp_path: Path) -> None:
    """It is made by each run on each node, before anything starts there."""
    words = [sys.executable, "-ISu", "-X", "importtime", "-c", BOOT]
    done = subprocess.run(
        words, input=command("place.py", placing(tmp_path)), capture_output=True, check=True
    )
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "json" in modules
    assert not {"pathlib", "shutil", "typing"} & modules
