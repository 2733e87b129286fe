"""Homes, stores and disks that cannot be written, or are full: a clear word, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@contextmanager
def small_disk(path: Path, size: str):
    """A file system of its own."""
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path, leave_bytes: int = 0):
    free = os.statvfs(path)
    with (path / "ballast").open("wb") as file:
        file.write(b"\0" * max(0, free.f_bavail * free.f_frsize - leave_bytes))


def complaint(result, *words):
    assert result.code in (1, 2), result
    assert "error: " in result.err, result.err
    for word in words:
        assert str(word) in result.err, result.err


def test_a_file_in_the_way_of_the_home(tm):
    tm.home.write_text("mine")
    for arguments in (["run", tm.task("true")], ["status"], ["models"], ["logs", "latest"]):
        complaint(tm.call(*arguments, code=2), tm.home, "TRAINMASTER_HOME")
    assert tm.home.read_text() == "mine"


def test_a_file_in_the_way_of_the_store(tm):
    store = tm.root / "store"
    store.write_text("mine")
    env = {**tm.env, "TRAINMASTER_STORE": f"file://{store}"}
    result = tm.call("run", tm.task("echo x > $TRAINMASTER_OUTPUT_DIR/x"), "--json", env=env, code=None)
    assert result.code in (1, 2)
    assert str(store) in result.err
    assert store.read_text() == "mine"


def test_a_home_that_is_no_database(tm):
    tm.home.mkdir()
    (tm.home / "trainmaster.db").write_bytes(b"this is not SQLite" * 1000)
    for arguments in (["run", tm.task("touch $NOTES/ran")], ["status"], ["resume", "latest"]):
        complaint(tm.call(*arguments, code=None), "trainmaster.db")
    assert not (tm.notes / "ran").exists()


def test_a_corrupt_database_in_use_is_no_traceback(tm):
    run = tm.run(tm.task("true"))["run"]
    for path in tm.home.glob("trainmaster.db*"):
        path.unlink()
    complaint(tm.call("status", run, code=None), run)


def test_a_login_by_a_port_or_a_user_that_there_is_not(tm):
    tm.home.mkdir()
    (tm.home / "slurm.yaml").write_text("login: a@b:99999\nmachines: {m: {cpus: 1, memory: 1GB}}\n")
    told = tm.call("doctor", "--provider", "slurm", code=None)
    assert "'a@b:99999'; write user@host, or user@host:port" in told.out + told.err
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
    named = {"TRAINMASTER_AWS_IMAGE": "ami-1", "TRAINMASTER_AWS_USER": "Ubuntu"}
    recipe = tm.task("true", provider="aws")
    complaint(
        tm.call("run", recipe, "--dry-run", env={**tm.env, **keys, **named}, code=None),
        "TRAINMASTER_AWS_USER is 'Ubuntu'",
    )


@pytest.mark.parametrize("url", ["https://[::1", "https://x:99999"])
def test_an_address_of_a_place_that_is_none(tm, url):
    tm.home.mkdir()
    (tm.home / "im.yaml").write_text(f"url: '{url}'\nclouds: {{ec2: {{image: 'aws://us-east-1/ami-1'}}}}\n")
    (tm.home / "openstack.yaml").write_text("image: x\n")
    (tm.home / "kubernetes.yaml").write_text("image: x\nmachines: {m: {cpus: 1, memory: 1GB}}\n")
    (tm.root / "kubeconfig").write_text(
        "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],"
        f" clusters: [{{name: c, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    )
    env = {**tm.env, "KUBECONFIG": str(tm.root / "kubeconfig"), "OS_AUTH_URL": url, "AWS_ENDPOINT_URL": url}
    for place in ("im", "openstack", "kubernetes", "aws"):
        told = tm.call("doctor", "--provider", place, env=env, code=None)
        assert "is no address: " in told.out, (place, told)
        assert "Traceback" not in told.err


@is_root
def test_a_home_on_a_read_only_disk(tm):
    with small_disk(tm.home, "16m"):
        subprocess.run(["mount", "-o", "remount,ro", tm.home], check=True)
        for arguments in (["run", tm.task("touch $NOTES/ran")], ["status"]):
            complaint(tm.call(*arguments, code=None), tm.home)
    assert not (tm.notes / "ran").exists()


@is_root
def test_a_full_home(tm):
    with small_disk(tm.home, "4m"):
        fill(tm.home)
        complaint(tm.call("run", tm.task("touch $NOTES/ran"), "--json", code=None), tm.home)
        tm.call("status", code=None)
    assert not (tm.notes / "ran").exists()


@is_root
def test_a_home_that_fills_up_while_it_runs(tm):
    with small_disk(tm.home, "24m"):
        tm.run(tm.task("true"))
        command = "seq 100000; head -c 40000000 /dev/zero | tr '\\0' x | fold -w 99; echo end"
        result = tm.call("run", tm.task(command), "--json", code=None, timeout_s=170)
        assert result.code in (0, 1), result
        if result.code:
            assert "space" in result.err or "full" in result.err, result.err
        for path in tm.home.rglob("*.log*"):  # room again
            path.unlink()
        tm.until_quiet()
        assert tm.run(tm.task("echo x > $TRAINMASTER_OUTPUT_DIR/x"))["models"]


@is_root
def test_output_for_which_there_is_no_room_is_told(tm):
    """Its end and the metrics in it are missing, and nothing else would say so."""
    with small_disk(tm.home / "runs", "3m"):
        command = "head -c 8000000 /dev/zero | tr '\\0' x | fold -w 99; echo end"
        result = tm.call("run", tm.task(command))
        assert "bytes of its output, and metrics in them, are lost" in result.err
        assert "Make room on the disk of this machine" in result.err
        run = tm.runs()[0]["run"]
        (lost,) = tm.status(run)["experiments"]["main"]["lost_output"]
        assert lost["words"].startswith("main/0: worker-0: the last ")
        assert lost["words"] in tm.call("status", run).out
        tm.until_quiet()


@is_root
def test_a_setup_that_has_no_room_says_so(tm, tmp_path):
    """Its log lies on the same disk: it can say nothing by itself."""
    cache = tmp_path / "small-cache"
    recipe = tm.task("true", setup="pip --version")
    with small_disk(cache, "6m"):
        result = tm.call("run", recipe, code=1, env={"TRAINMASTER_CACHE": str(cache)})
        assert f"no space is left on the disk. Make room at {cache}/environments, then resume" in result.err


@is_root
def test_a_full_output_directory_is_the_scripts_error(tm):
    with small_disk(tm.home, "24m"):
        command = "big=$TRAINMASTER_OUTPUT_DIR/big; trap 'rm $big' EXIT; head -c 100000000 /dev/zero > $big"
        summary = tm.run(tm.task(command), code=1)
        assert summary["reason"] == "USER_ERROR"
        assert "No space left" in tm.logs(summary["run"])
        tm.until_quiet()


@is_root
def test_a_task_that_leaves_its_home_full(tm):
    with small_disk(tm.home, "24m"):
        recipe = tm.task("test -e $NOTES/go || head -c 100000000 /dev/zero > $TRAINMASTER_OUTPUT_DIR/big")
        impatient = {**tm.env, "TRAINMASTER_DATABASE_PATIENCE": "1s"}
        result = tm.call("run", recipe, "--json", code=1, env=impatient)
        assert "full" in result.err
        tm.until_quiet()
        for path in tm.home.glob("runs/*/tasks/main/0/*/output/big"):
            path.unlink()
        (tm.notes / "go").touch()
        run = tm.runs()[0]["run"]
        assert tm.resume(run, code=1)["state"] == "DONE"
        assert tm.resume(run)["reason"] == "SUCCEEDED"


@is_root
def test_a_full_store_is_waited_for(tm):
    with small_disk(tm.root / "store", "1m") as store:
        env = {**tm.env, "TRAINMASTER_STORE": f"file://{store}"}
        recipe = tm.task("head -c 3000000 /dev/urandom > $TRAINMASTER_OUTPUT_DIR/model")
        call = tm.start("run", recipe, "--json", env=env)
        tm.until(lambda: "saving is tried again" in call.err, "the note")
        assert "space" in call.err
        assert str(store) in call.err
        subprocess.run(["mount", "-o", "remount,size=16m", store], check=True)
        assert tm.summary(call.wait(0, 150))["models"]


@is_root
def test_a_read_only_store_fails_the_task(tm):
    with small_disk(tm.root / "store", "1m") as store:
        subprocess.run(["mount", "-o", "remount,ro", store], check=True)
        env = {**tm.env, "TRAINMASTER_STORE": f"file://{store}"}
        result = tm.call("run", tm.task("echo x > $TRAINMASTER_OUTPUT_DIR/x"), "--json", env=env, code=None)
        assert result.code in (1, 2)
        assert str(store) in result.err
        assert "ead-only" in result.err


@is_root
def test_a_disk_without_room_for_data_is_waited_for(tm):
    images = tm.root / "images"
    images.mkdir()
    (images / "one").write_bytes(os.urandom(2_000_000))
    tm.call("volume", "push", images, "pets", code=0)
    with small_disk(tm.cache, "1m"):
        recipe = tm.task("ls $TRAINMASTER_DATA_PETS > $NOTES/ran", data={"pets": {"volume": "pets"}})
        call = tm.start("run", recipe, "--json")
        tm.until(lambda: "not ready to start, and tried again" in call.err, "the note")
        assert str(tm.cache) in call.err
        assert not (tm.notes / "ran").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", tm.cache], check=True)
        assert tm.summary(call.wait(0, 150))["reason"] == "SUCCEEDED"
    assert (tm.notes / "ran").read_text() == "one\n"


@is_root
def test_a_full_cache_fails_the_setup(tm):
    with small_disk(tm.cache, "1m"):
        result = tm.call("run", tm.task("touch $NOTES/ran", setup="true"), "--json", code=1)
        assert tm.summary(result)["state"] == "DONE"
        assert str(tm.cache) in result.err
    assert not (tm.notes / "ran").exists()
    tm.until_quiet()


def test_a_file_in_the_way_of_the_cache(tm):
    tm.cache.write_text("mine")
    result = tm.call("run", tm.task("touch $NOTES/ran", setup="true"), "--json", code=None)
    assert result.code in (1, 2)
    assert str(tm.cache) in result.err
    assert not (tm.notes / "ran").exists()
    tm.until_quiet()


def test_an_unwritable_output_directory(tm):
    # root may write everywhere: a directory that is gone behaves the same for everybody
    result = tm.call(
        "run", tm.task("rmdir $TRAINMASTER_OUTPUT_DIR; echo x > $TRAINMASTER_OUTPUT_DIR/x"), "--json", code=1
    )
    assert tm.summary(result)["reason"] == "USER_ERROR"
    assert "No such file or directory" in result.err


def test_a_user_without_a_home(tm):
    """Of a container or unit that runs as some number; `pwd` of whoever runs the tests may know theirs."""
    code = """
import pwd, sys
def getpwuid(number): raise KeyError(number)
pwd.getpwuid = getpwuid
from trainmaster.cli import main
sys.argv = ["trainmaster", *sys.argv[1:]]
main()
"""
    env = {name: value for name, value in tm.env.items() if name not in ("HOME", "TRAINMASTER_HOME")}
    told = subprocess.run(
        [sys.executable, "-c", code, "--version"], env=env, capture_output=True, check=False, timeout=60
    )
    assert told.returncode == 0, "what needs no home"
    for verb in ("status", "doctor", "budget"):
        call = [sys.executable, "-c", code, verb]
        result = subprocess.run(call, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert (result.returncode, result.stderr.splitlines()) == (
            2,
            [
                f"error: HOME is not set, and the user {os.getuid()} is not in /etc/passwd",
                "Set HOME to a directory that you can write.",
            ],
        )


def test_a_home_with_an_odd_name(tm):
    home = tm.root / "a home 'with\" $odd \u00e4 %20 name"
    env = {**tm.env, "TRAINMASTER_HOME": str(home)}
    summary = tm.run(tm.task("""echo x > "$TRAINMASTER_OUTPUT_DIR/x" """), env=env)
    tm.call("models", "get", summary["models"][0]["uri"], tm.root / "got", env=env)
    assert (tm.root / "got" / "x").exists()


def test_a_home_with_a_long_path(tm):
    home = tm.root.joinpath(*["d" * 60] * 4)  # longer than a socket's address may be
    env = {**tm.env, "TRAINMASTER_HOME": str(home)}
    assert tm.run(tm.task("true"), env=env)["reason"] == "SUCCEEDED"


def test_a_home_behind_a_link(tm):
    (tm.root / "real").mkdir()
    tm.home.symlink_to(tm.root / "real")
    first = tm.start("run", tm.task("touch $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.05; done"), "--json")
    tm.until((tm.notes / "up").exists)
    env = {**tm.env, "TRAINMASTER_HOME": str(tm.root / "real")}
    run = tm.call("status", "--json", env=env).json["runs"][0]["run"]
    assert run == first.run_id()
    (tm.notes / "go").touch()
    first.wait(0)


def test_the_working_directory_is_gone(tm):
    recipe = tm.task("true")
    gone = tm.root / "gone"
    gone.mkdir()
    result = tm.call("run", recipe, "--json", prefix=f"cd {gone}; rmdir {gone};", code=None)
    assert result.code in (0, 1, 2)


def test_standard_error_is_closed(tm):
    recipe = tm.task("echo x")
    result = tm.call("run", recipe, "--json", prefix="exec 2>&-;", code=None)
    assert result.code == 0
    assert result.json["reason"] == "SUCCEEDED"


@is_root
def test_a_checkpoint_that_cannot_be_kept_is_told_while_it_runs(tm):
    with small_disk(tm.root / "store", "1m") as store:
        env = {**tm.env, "TRAINMASTER_STORE": f"file://{store}"}
        command = """
            head -c 3000000 /dev/urandom > $TRAINMASTER_CHECKPOINT_DIR/c
            until test -e $NOTES/go; do sleep 0.1; done
        """
        call = tm.start("run", tm.task(command, checkpoint={"every": "1s"}), "--json", env=env)
        tm.until(lambda: "main/0: no checkpoint: " in call.err, "the warning")
        (tm.notes / "go").touch()
        tm.until(lambda: "saving is tried again" in call.err, "the note")
        assert "space" in call.err
        subprocess.run(["mount", "-o", "remount,size=16m", store], check=True)
        call.wait(0, 150)
