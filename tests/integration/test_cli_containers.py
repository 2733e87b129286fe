"""`container: IMAGE` from the user's seat: what is promised of a task holds inside one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from private_engines import IMAGE, NO_BASH, NO_PYTHON, WITHOUT_DAEMON, engine_of_module

from trainmaster.executors.containers.command_line import shared_bytes

pytestmark = pytest.mark.container


docker, podman, apptainer, enroot = map(engine_of_module, ("docker", "podman", "apptainer", "enroot"))


@pytest.fixture(params=["docker", "podman", "apptainer", "enroot"])
def engine(request, tm):
    """All, one after the other; whatever a test does, it leaves no container."""
    found = request.getfixturevalue(request.param)
    yield from used(found, tm)


@pytest.fixture
def user(tm):
    """Whose directories anybody may look into; pytest's are root's alone."""
    root = Path(tempfile.mkdtemp(prefix="tm-user-", dir="/tmp"))
    root.chmod(0o755)
    found = type(tm)(root)
    try:
        yield found
    finally:
        found.clean_up()
        shutil.rmtree(root)


@pytest.fixture
def dock(docker, tm):
    yield from used(docker, tm)


def used(engine, tm):
    tm.env |= engine.env
    try:
        yield engine
        engine.until_empty()
    finally:
        tm.clean_up()
        engine.remove_all()


#: What the first two do with signals and containers that are left is said by the same calls.
IN_DOCKER = pytest.mark.parametrize(
    "engine",
    ["docker", pytest.param("podman", marks=pytest.mark.crossings), "apptainer", "enroot"],
    indirect=True,
)


#: Docker has a daemon, the others none.
IN_BOTH = pytest.mark.parametrize("engine", ["docker", "apptainer", "enroot"], indirect=True)


def task(tm, command, **keys):
    return tm.task(command, container=IMAGE, **keys)


def test_a_task_finds_the_same_inside(tm, engine):
    tm.write("data/numbers", "1 2 3\n")
    tm.write("train.py", "import os; print('python of', os.sys.prefix)")
    tm.env |= {"OF_THE_CALLER": "1", "TOKEN": "battery staple"}
    more = (shared_bytes() >> 20) + 1  # MiB: than this machine has
    recipe = task(
        tm,
        """
        echo "image $FROM_IMAGE, caller ${OF_THE_CALLER-none}, home of the host ${TRAINMASTER_HOME-none}"
        echo "word $WORD, secret ${TOKEN#battery }, lr $TRAINMASTER_PARAM_LR, quoted" {{lr}}
        echo "user $(id -u):$(id -g), process $TRAINMASTER_ROLE-$TRAINMASTER_INDEX"
        pwd
        python3 train.py
        cat "$TRAINMASTER_DATA_NUMBERS/numbers" deep/link/numbers
        echo '{"step": 1, "loss": 0.5}' >> "$TRAINMASTER_METRICS"
        echo model > "$TRAINMASTER_OUTPUT_DIR/model"
        echo checkpoint > "$TRAINMASTER_CHECKPOINT_DIR/checkpoint"
        touch "$HOME/written" in-the-working-directory
        read -r line || echo "nothing to read"
        echo complaint >&2
        python3 -c 'import os; at = os.statvfs("/dev/shm"); print("shared", at.f_frsize * at.f_blocks)'
        """,
        hardware={"shm_size": f"{more}MiB"},
        parameters={"lr": ["it's; $HOME\n*"]},
        env={"WORD": 'a "b" $c \\ ü\nd'},
        secrets=["TOKEN"],
        data={"numbers": {"dir": "data", "at": "deep/link"}},
    )
    summary = tm.run(recipe)
    log = tm.logs(summary["run"])
    shared = more << 20 if engine.kind not in WITHOUT_DAEMON else shared_bytes()
    assert "image yes, caller none, home of the host none\n" in log
    assert "word a \"b\" $c \\ ü\nd, secret staple, lr it's; $HOME\n*, quoted it's; $HOME\n*\n" in log
    assert f"user {os.getuid()}:{os.getgid()}, process worker-0\n" in log
    code = tm.home / "runs" / summary["run"] / "code"
    assert f"{code}\npython of /usr/local\n1 2 3\n1 2 3\nnothing to read\ncomplaint\nshared {shared}\n" in log
    (model,) = summary["models"]
    assert model["metrics"] == {"step": 1, "loss": 0.5}
    tm.call("models", "get", model["uri"], tm.root / "got")
    assert (tm.root / "got/model").read_text() == "model\n"
    assert list((tm.home / "store").rglob("checkpoint*"))
    assert (code / "in-the-working-directory").exists()


@IN_DOCKER
def test_how_a_script_ends(tm, engine):
    """Exit codes are the script's; what it leaves behind gets SIGTERM, as without a container."""
    ends = {
        "(trap 'echo asked; exit' TERM; sleep 600 & wait) & sleep 0.5; exit 3": "exit code 3",
        "kill -9 $$": "SIGKILL",
        "no-such-command": "command not found",
        "false | true": "exit code 1",
    }
    recipe = task(tm, 'eval "$TRAINMASTER_PARAM_END"', parameters={"end": list(ends)})
    result = tm.call("run", recipe, "--json", code=1)
    for number, told in enumerate(ends.values()):
        assert re.search(rf"^main/{number} \(end=.*\): attempt 1 USER_ERROR: exit code", result.err, re.M)
        assert told in result.err
    assert "asked" in tm.logs(result.json["run"])


@IN_BOTH
def test_a_gang_talks_through_its_ports(tm, engine):
    tm.write(
        "talk.py",
        """
        import os, socket, time
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if os.environ["RANK"] == "0":
            with socket.create_server(address) as server:
                print("heard", server.accept()[0].recv(100).decode())
        else:
            while True:
                try:
                    with socket.create_connection(address) as connection:
                        connection.sendall(b"rank 1 of " + os.environ["WORLD_SIZE"].encode())
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
        """,
    )
    gang = {"strategy": "allreduce", "workers": 2}
    summary = tm.run(task(tm, "python3 talk.py", distributed=gang))
    assert "heard rank 1 of 2\n" in tm.logs(summary["run"])


SAVES_WHEN_ASKED = """
    if [[ -e $TRAINMASTER_CHECKPOINT_DIR/saved ]]; then cat $TRAINMASTER_CHECKPOINT_DIR/saved; exit; fi
    python3 -u -c '
    import os, signal, sys, time
    def save(*_):
        time.sleep(0.5)
        with open(os.environ["TRAINMASTER_CHECKPOINT_DIR"] + "/saved", "w") as file:
            file.write("saved once")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready")
    time.sleep(600)
    '
"""


def until_said(tm, run, words):
    log = tm.home / "runs" / run / "tasks/main/0/1/worker-0.log"
    tm.until(lambda: log.exists() and words in log.read_text(), f"the task says {words}")


def test_sigterm_reaches_the_script_which_saves(tm, engine):
    call = tm.start("run", task(tm, SAVES_WHEN_ASKED.replace("\n    ", "\n")), "--json")
    run = call.run_id()
    until_said(tm, run, "ready")
    call.send(signal.SIGINT)
    call.wait(130)
    assert engine.containers() == []
    tm.resume(run)
    assert "saved once" in tm.logs(run)


@IN_BOTH
def test_stopped_while_its_container_starts(tm, engine):
    """Whenever SIGTERM comes, it is not lost: nobody waits for the end of ``grace``."""
    for pause_s in (0.0, 0.15):
        call = tm.start("run", task(tm, "sleep 600", grace="1h"), "--json")
        run = call.run_id()
        tm.until(lambda run=run: list((tm.home / "runs" / run).rglob("worker-0.log")), "it was started")
        time.sleep(pause_s)
        call.send(signal.SIGINT)
        call.wait(130, timeout_s=20)
        assert engine.containers() == []


@IN_DOCKER
def test_ignoring_sigterm_ends_with_the_grace(tm, engine):
    recipe = task(tm, "trap '' TERM; echo ready; while :; do sleep 600 || :; done", grace="1s")
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    until_said(tm, run, "ready")
    assert tm.call("cancel", run, "--json").json["reason"] == "CANCELLED"
    call.wait(1)
    assert engine.containers() == []
    tm.until_quiet()


@IN_DOCKER
def test_the_supervisor_is_killed(tm, engine):
    """Its successor ends what it left, and the task is tried again."""
    recipe = task(
        tm, "echo ready; [[ $TRAINMASTER_ATTEMPT = 1 ]] || exit 0; trap '' TERM; sleep 600; sleep 600"
    )
    call = tm.start("run", recipe, "--json")
    until_said(tm, call.run_id(), "ready")
    before = engine.containers()
    assert len(before) == 1
    clients = [
        pid
        for pid, command in tm.processes().items()
        if command.startswith(f"{shutil.which(engine.kind)} run")
    ]
    assert clients or engine.kind in WITHOUT_DAEMON  # whose client is no process of its own
    for pid in [*tm.supervisors(), *clients]:
        os.kill(pid, signal.SIGKILL)
    call.wait(0)
    assert engine.containers() == []


@IN_BOTH
def test_everything_of_ours_is_killed(tm, engine):
    """The containers outlive all of us; what comes next ends them."""
    call = tm.start("run", task(tm, "echo ready; trap '' TERM; sleep 600; sleep 600"), "--json")
    run = call.run_id()
    until_said(tm, run, "ready")
    call.kill()
    for pid, command in tm.processes().items():
        if "sleep" not in command and not command.startswith("bash"):
            os.kill(pid, signal.SIGKILL)
    assert len(engine.containers()) == 1
    assert tm.call("cancel", run, "--json", code=None).json["reason"] == "CANCELLED"
    tm.until(lambda: not engine.containers(), "its container is gone")


def with_a_process_that_ends(tm):
    """Every search for processes also finds one that has ended, first."""
    grep = tm.write("bin/grep", f"""\
        #!/bin/sh
        case "$1" in -l*) echo /proc/4194305/environ;; esac
        exec {shutil.which("grep")} "$@"
        """, 0o755)  # fmt: skip
    return {**tm.env, "PATH": f"{grep.parent}:{tm.env['PATH']}"}


def test_exec_and_ssh_are_inside_and_cp_on_the_machine(tm, engine):
    """What is begun there ends with its caller, as elsewhere."""
    tm.env["TOKEN"] = "battery staple"
    recipe = task(
        tm,
        "touch up; while [[ ! -e go-$TRAINMASTER_INDEX ]]; do sleep 0.1; done",
        distributed={"strategy": "allreduce", "workers": 2},
        framework="plain",
        env={"WORD": "a 'b\" $c\nd"},
        secrets=["TOKEN"],
    )
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    code = tm.home / "runs" / run / "code"
    tm.until(lambda: (code / "up").exists() and len(engine.containers()) == 2, "both are in containers")
    line = 'printf "%s\\n" "$FROM_IMAGE" "$TRAINMASTER_INDEX" "$WORD" "$TOKEN" "$PWD" "$HOME"'
    for verb, member in (("exec", "worker-1"), ("ssh", "worker-0")):
        said = tm.call(verb, run, member, "--", line).out
        assert said == f"yes\n{member[-1]}\na 'b\" $c\nd\nbattery staple\n{code}\n/tmp\n"
    env = with_a_process_that_ends(tm)
    hears = tm.call(
        "exec", run, "--", "cat; echo apart >&2; exit 2", code=2, prefix="exec <<<given;", env=env
    )
    assert (hears.out, hears.err) == ("given\n", "apart\n")
    assert tm.call("exec", run, "--", "python3", "-c", "import sys; print(sys.prefix)").out == "/usr/local\n"
    saves = (
        "trap 'sleep 0.7 && touch saved; exit' TERM"  # by a program that it begins when it is asked to end
    )
    staying = tm.start("exec", run, "worker-0", "--", f"{saves}; touch here; sleep 12345; true")
    tm.until((code / "here").exists, "it has begun")
    staying.send(signal.SIGTERM)
    assert staying.process.wait(60) == 128 + signal.SIGTERM
    tm.until(lambda: subprocess.run(["pgrep", "-f", "^sleep 12345$"]).returncode != 0, "it is gone")
    tm.until((code / "saved").exists, "what it did at its end was left alone")
    (tm.root / "given").write_text("from here")
    tm.call("cp", tm.root / "given", f"{run}:given")
    assert (code / "given").read_text() == "from here"
    for index in (0, 1):
        (code / f"go-{index}").touch()
    call.wait(0)
    over = tm.call("exec", run, "--", "pwd")
    assert over.out == f"{code}\n"
    assert f"{run}: its container does not run, so this is its machine" in over.err


@IN_BOTH
def test_setup_is_made_with_the_python_of_the_image(tm, engine):
    """Once for two tasks, and not with the environment of the same `setup` without a container."""
    keys = {
        "setup": "echo once >> $VIRTUAL_ENV/made\n"
        "echo 'where = __file__' > $(echo $VIRTUAL_ENV/lib/python*/site-packages)/installed.py",
        "parameters": {"x": [1, 2]},
    }
    recipe = task(tm, "python -c 'import installed; print(installed.where)'; cat $VIRTUAL_ENV/made", **keys)
    log = tm.logs(tm.run(recipe)["run"])
    assert log.count("site-packages/installed.py") == 2
    assert log.count(str(tm.cache / "environments")) == 2
    assert log.count("once") == 2  # each task sees one line
    (venv,) = (path for path in (tm.cache / "environments").iterdir() if path.is_dir())
    assert (venv / "bin/python3").readlink().is_relative_to("/usr/local")

    failing = tm.call("run", tm.task("true", container=NO_PYTHON, setup="true"), "--json", code=1)
    assert "setup failed with exit code 1: there is no python3 in the image" in failing.err


@IN_BOTH
def test_setup_is_cut_short(tm, engine):
    recipe = task(tm, "echo done", setup="sleep 23456")
    killed = ""

    def is_setting_up():
        """A setup is there, and not the killed one; an image is tried in a container, too."""
        found = subprocess.run(["pgrep", "-f", "^sleep 23456$"], capture_output=True, text=True).stdout
        return found if found != killed else ""

    call = tm.start("run", recipe, "--json")
    call.run_id()
    tm.until(is_setting_up, "its container runs")
    call.send(signal.SIGINT)
    call.wait(130)
    assert engine.containers() == []

    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until(is_setting_up, "its container runs")
    call.kill()
    tm.call("cancel", run)
    assert engine.containers() == []

    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    killed = tm.until(is_setting_up, "its container runs")
    call.kill()
    call = tm.start("resume", run, "--json")  # ends what was left, and begins again
    tm.until(is_setting_up, "another one is there in its place")
    call.send(signal.SIGINT)
    call.wait(130)


def test_images_that_do_not_help(tm, dock):
    assert "write an image's name" in tm.refused(tm.task("true", container="--privileged"))
    refusal = tm.refused(tm.task("true", container="no-such-image:9", parameters={"x": [1, 2, 3]}))
    assert "no-such-image:9 is not on this machine and cannot be pulled" in refusal
    assert "docker build -t" in refusal
    result = tm.call("run", tm.task("true", container=NO_BASH), code=1)
    assert "has no bash" in result.err
    assert "USER_ERROR" in result.err


def test_without_an_engine(tm, tmp_path):
    """Nothing is started, and the words say what to do."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("bash", "env"):
        (bare / tool).symlink_to(shutil.which(tool))
    tm.env |= {"PATH": str(bare), "DOCKER_HOST": "unix:///no/such/socket"}
    refusal = tm.refused(task(tm, "true"))
    assert "docker is not installed; podman is not installed" in refusal
    tm.env["TRAINMASTER_CONTAINER_ENGINE"] = "lxc"
    assert "TRAINMASTER_CONTAINER_ENGINE" in tm.refused(task(tm, "true"))
    if docker := shutil.which("docker"):
        (bare / "docker").symlink_to(docker)
        tm.env["TRAINMASTER_CONTAINER_ENGINE"] = "docker"
        assert "docker does not answer (Cannot connect to the Docker daemon" in tm.refused(task(tm, "true"))


@IN_BOTH
def test_secrets_are_nowhere_but_inside(tm, engine):
    secret = "correct-horse-battery"
    tm.env["TOKEN"] = secret
    call = tm.start("run", task(tm, "echo got ${#TOKEN}; sleep 600", secrets=["TOKEN"], grace=0), "--json")
    run = call.run_id()
    until_said(tm, run, f"got {len(secret)}")
    (name,) = engine.containers()
    if engine.kind == "docker":
        assert secret not in engine.client("inspect", name)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            assert secret.encode() not in (entry / "cmdline").read_bytes()
        except OSError:
            continue
    for directory in (engine.directory, tm.home):
        search = ["grep", "-rls", "--exclude-dir=overlay2", "--devices=skip", secret, directory]
        assert subprocess.run(search, capture_output=True).stdout == b""
    call.send(signal.SIGINT)
    call.wait(130)


def test_an_ordinary_user_owns_what_is_written(tm, user, dock):
    """Not root: a user of the group that may talk to docker."""
    user.env |= dock.env
    uid = gid = 54321
    socket = Path(dock.env["DOCKER_HOST"].removeprefix("unix://"))
    os.chown(socket, 0, gid + 1)
    socket.chmod(0o660)
    for path in (user.root, user.work, user.notes):
        os.chown(path, uid, gid)
    # Our own Python may lie in root's home, so this user may read everything; and write nothing of it.
    become = (
        f"set -- setpriv --reuid={uid} --regid={gid} --groups={gid + 1} "
        '--inh-caps=+dac_read_search --ambient-caps=+dac_read_search -- "$@";'
    )
    recipe = task(
        user,
        "id; touch here $HOME/there $TRAINMASTER_OUTPUT_DIR/model $TRAINMASTER_CHECKPOINT_DIR/checkpoint",
    )
    run = user.call("run", recipe, "--json", prefix=become, env={**user.env, "HOME": str(user.root)}).json[
        "run"
    ]
    assert f"uid={uid} gid={gid}" in (user.home / "runs" / run / "tasks/main/0/1/worker-0.log").read_text()
    written = [path for top in (user.home, user.cache) for path in top.rglob("*")]
    assert any(path.name == "here" for path in written)
    strangers = {path for path in written if (path.lstat().st_uid, path.lstat().st_gid) != (uid, gid)}
    assert not strangers
