"""`container: IMAGE` on a host over SSH: the image is sent there, and a task finds inside what it should."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="ray is not installed")

from private_engines import APPTAINER, IMAGE, NoEngineError, PrivateEngine

from trainmaster.testing.private_s3 import NoS3Error, PrivateS3
from trainmaster.testing.private_sshd import PATH, SshHost
from trainmaster.volumes.mounting import available

pytestmark = [pytest.mark.container, pytest.mark.ray]


@pytest.fixture(scope="module", params=["podman", "apptainer"])
def engines(request: pytest.FixtureRequest) -> Iterator[dict[str, PrivateEngine]]:
    """The user's docker, which has the image, and the host's own engine, which has it not."""
    try:
        with PrivateEngine("docker") as docker, PrivateEngine(request.param) as theirs:
            theirs.forget(IMAGE)
            yield {"here": docker, "there": theirs}
    except NoEngineError as error:
        pytest.skip(str(error))


#: To begin, a node of Ray's takes some seconds of a core more; containers are the same.
SSH = ("--set", "engine=ssh")


class Containers:
    """A user with one host, where containers are to run."""

    def __init__(self, tm: Any, host: SshHost, engines: dict[str, PrivateEngine]) -> None:
        self.tm, self.host, self.theirs = tm, host, engines["there"]
        tm.env |= engines["here"].env
        entry = {
            "address": "127.0.0.1",
            "private_address": "127.0.0.2",
            "port": host.port,
            "key": str(host.key),
            "python": host.python,
            "slots": 4,
        }
        tm.home.mkdir(exist_ok=True)
        (tm.home / "hosts.yaml").write_text(json.dumps({"hosts": [entry]}))

    def recipe(self, command: str, **keys: Any) -> Path:
        return self.tm.task(command, container=IMAGE, **keys)

    def run(self, recipe: Path, code: int = 0) -> Any:
        return self.tm.call(
            "run", recipe, "--provider", "hosts", "--yes", "--json", *SSH, code=code, timeout_s=150
        )

    def start(self, recipe: Path) -> Any:
        return self.tm.start("run", recipe, "--provider", "hosts", "--yes", "--json", *SSH)


@pytest.fixture
def user(
    tm: Any, new_host: Callable[..., SshHost], engines: dict[str, PrivateEngine]
) -> Iterator[Containers]:
    env = dict(engines["there"].env)
    path = f"{APPTAINER}:{PATH}" if env.pop("PATH", "") else PATH
    host = new_host(path=path, **env)
    found = Containers(tm, host, engines)
    yield found
    identity = tm.home / "identity"
    root = Path(
        "/var/tmp", f"trainmaster-{identity.read_text().strip()[:8]}" if identity.exists() else "none"
    )
    found.theirs.remove_all()
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.crossings  # `test_lab_containers.py` has a gang whose image goes there
def test_the_image_goes_there_and_a_task_finds_the_same_inside(user: Containers) -> None:
    tm = user.tm
    tm.write("data/numbers", "1 2 3\n")
    tm.env |= {"OF_THE_CALLER": "1", "TOKEN": "battery staple"}
    keys = {
        "parameters": {"lr": ["it's; $HOME"], "n": [1, 2]},
        "env": {"WORD": 'a "b" $c'},
        "secrets": ["TOKEN"],
        "data": {"numbers": {"dir": "data", "at": "deep/link"}},
        "setup": "echo once >> $VIRTUAL_ENV/made\n"
        "echo 'where = __file__' > $(echo $VIRTUAL_ENV/lib/python*/site-packages)/installed.py",
    }
    recipe = user.recipe(
        """
        echo "image $FROM_IMAGE, caller ${OF_THE_CALLER-none}, word $WORD, part ${TOKEN#battery }, lr" {{lr}}
        python -c 'import installed, trainmaster; print(installed.where); trainmaster.report(loss=0.5)'
        cat "$TRAINMASTER_DATA_NUMBERS/numbers" deep/link/numbers $VIRTUAL_ENV/made
        echo model of {{n}} > "$TRAINMASTER_OUTPUT_DIR/model"
        echo checkpoint > "$TRAINMASTER_CHECKPOINT_DIR/checkpoint"
        """,
        **keys,
    )
    found = user.run(recipe).json
    log = tm.logs(found["run"])
    assert log.count('image yes, caller none, word a "b" $c, part staple, lr it\'s; $HOME\n') == 2
    assert log.count("site-packages/installed.py") == 2
    assert log.count("1 2 3\n") == 4
    assert log.count("once") == 2  # each task sees one line
    assert [model["metrics"] for model in found["models"]] == [{"loss": 0.5}] * 2
    tm.call("models", "get", found["models"][1]["uri"], tm.root / "got")
    assert (tm.root / "got/model").read_text() == "model of 2\n"
    assert list((tm.home / "store").rglob("checkpoint*"))
    assert not list((tm.cache / "images").glob("*")), "what was sent is not kept"
    assert user.theirs.containers() == []
    assert user.theirs.has(IMAGE)


@pytest.mark.crossings  # `test_lab_containers.py` has a gang that does
def test_it_is_stopped_saves_and_goes_on(user: Containers) -> None:
    tm = user.tm
    recipe = user.recipe(
        """
        if [[ -e $TRAINMASTER_CHECKPOINT_DIR/saved ]]; then cat $TRAINMASTER_CHECKPOINT_DIR/saved; exit; fi
        trap 'echo saved once > $TRAINMASTER_CHECKPOINT_DIR/saved; exit 3' TERM
        echo ready
        sleep 600 & wait
        """
    )
    call = user.start(recipe)
    run = call.run_id()
    log = tm.home / "runs" / run / "tasks/main/0/1/worker-0.log"
    tm.until(lambda: log.exists() and "ready" in log.read_text(), "the task says ready", patience_s=120)
    assert len(user.theirs.containers()) == 1
    call.send(signal.SIGINT)
    call.wait(130)
    assert user.theirs.containers() == []
    tm.resume(run, timeout_s=150)
    assert "saved once" in tm.logs(run)


@pytest.mark.crossings  # `test_lab_own_hosts.py` has it without a container
def test_a_setup_in_a_container_is_ended_by_cancel_when_its_driver_was_killed(user: Containers) -> None:
    """With its container: the host is the user's own, and stays."""
    tm = user.tm

    def is_there() -> bool:
        return any(each.info["cmdline"] == ["sleep", "24697"] for each in psutil.process_iter(["cmdline"]))

    call = user.start(user.recipe("true", setup="sleep 24697"))
    run = call.run_id()
    tm.until(is_there, "its setup", patience_s=120)
    call.kill()
    assert is_there()
    tm.call("cancel", run)
    tm.until(lambda: not is_there(), "its setup has ended", patience_s=30)
    tm.until(lambda: user.theirs.containers() == [], "its container is gone", patience_s=30)


@pytest.mark.crossings  # `test_lab_containers.py` reads one inside, too
@pytest.mark.s3
def test_a_volume_that_the_host_has_mounted_is_seen_inside(user: Containers) -> None:
    pytest.importorskip("boto3", reason="buckets are made with boto3")
    tm = user.tm
    try:
        server = PrivateS3()
    except NoS3Error as error:
        pytest.skip(str(error))
    with server:
        tm.env |= server.environment(server.url)
        tm.env["TRAINMASTER_STORE"] = f"s3://{server.new_bucket()}/store"
        source = tm.write("images/deep/a", "of the volume\n").parents[1]
        tm.call("volume", "push", source, "images")
        source.rename(tm.root / "images")
        recipe = user.recipe(
            "cd $TRAINMASTER_DATA_IMAGES && cat deep/a $OLDPWD/in/images/deep/a && cat /proc/mounts",
            data={"images": {"volume": "images", "at": "in/images"}},
        )
        call = user.run(recipe)
        log = tm.logs(call.json["run"])
    assert log.count("of the volume\n") == 2
    assert "trainmaster:s3://" in log or available() is not None
    assert "through this machine" not in call.err
    # Other tests may have mounts of theirs meanwhile, also of a store with that name.
    assert f"/runs/{call.json['run']}/" not in Path("/proc/self/mountinfo").read_text()
