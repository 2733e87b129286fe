"""What nodes are asked to do about images, and what of it is kept here; the test is nodes and engine."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_worker import Node as ThisMachine

from trainmaster.cluster.node_files.files import NodeFiles
from trainmaster.cluster.node_files.images import NodeImages
from trainmaster.control.attempt import staging
from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.layout import Home
from trainmaster.executors.containers import engines
from trainmaster.executors.containers.engines import ContainerImage
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import Target


class Node:
    """Has what it is asked for; notes the orders, and what archives bring."""

    def __init__(self, name: str, gpus: tuple[str, ...] | None = (), *, wants: bool = False) -> None:
        self.id, self.target, self.python = name, Target(name, "192.0.2.1"), "/py"
        facts = None if gpus is None else SimpleNamespace(gpus=gpus)
        self.result = SimpleNamespace(facts=facts)
        self.wants = wants
        self.orders: list[dict[str, Any]] = []
        self.loaded = b""

    def image(self, order: dict[str, Any], archive: Iterable[bytes] = ()) -> dict[str, Any]:
        self.orders.append(order)
        if self.wants and not order["has_archive"]:
            return {"wants": "no registry gives it"}
        if self.wants:
            self.loaded = gzip.decompress(b"".join(archive))
        return {"id": "sha256:1", "env": {}, "user": "0:0"}


class Engine:
    """Has every image; an archive of one is its name."""

    def __init__(self) -> None:
        self.fails = False
        self.saved: list[str] = []

    def image(self, _: str) -> ContainerImage:
        return ContainerImage("sha256:0123456789abcdef", {}, is_own=True)

    def save(self, name: str, path: str) -> None:
        self.saved.append(name)
        Path(path).write_text(name)
        if self.fails:
            raise OSError("no room")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(engines, "find_engine", lambda _: made)
    return made


class World:
    def __init__(self, directory: Path) -> None:
        self.home = Home.from_environment(
            {"TRAINMASTER_HOME": str(directory / "home"), "TRAINMASTER_CACHE": str(directory / "cache")}
        )
        self.images = self.home.cache / "images"

    def source(self) -> NodeImages:
        """Of one control process."""
        paths: Any = SimpleNamespace(root="/root-there", there=str)
        files: Any = SimpleNamespace(worker=contextlib.nullcontext)
        return NodeImages(files, paths, {})

    def context(self, image: str = "lab/torch", gpus: int = 0, *, is_foreign: bool = False) -> Any:
        experiment = SimpleNamespace(
            name="train", container=image, hardware=SimpleNamespace(gpu_count=gpus, gpus=gpus)
        )
        return SimpleNamespace(
            run="digits-7f3a", home=self.home, experiment=experiment, is_foreign=is_foreign
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_gpus_are_tried_out_in_a_container_where_there_are_some(world: World, engine: Engine) -> None:
    """A parameter server's machine has none, and its image is as good as the workers'."""
    workers, server, unknown = Node("i-0", gpus=("V100",)), Node("i-1"), Node("i-2", gpus=None)
    source = world.source()
    for node in (workers, server, unknown):
        source.prepare(node, world.context(gpus=1))  # type: ignore[arg-type]
    assert [node.orders[0]["gpus"] for node in (workers, server, unknown)] == [True, False, False]
    source.prepare(workers, world.context("lab/plain"))  # type: ignore[arg-type]
    assert workers.orders[1]["gpus"] is False, "nobody asked for one"


def test_others_are_not_sent_images_of_this_machine(world: World, engine: Engine) -> None:
    for is_foreign, offered in ((False, "sha256:0123456789abcdef"), (True, "")):
        node = Node("i-0", wants=is_foreign)
        source = world.source()
        context = world.context(is_foreign=is_foreign)
        if is_foreign:
            with pytest.raises(TrainmasterError):
                source.prepare(node, context)  # type: ignore[arg-type]
        else:
            source.prepare(node, context)  # type: ignore[arg-type]
        assert [order["offered"] for order in node.orders] == [offered]
    assert engine.saved == []


def test_what_a_driver_that_was_killed_has_saved_is_removed(world: World, engine: Engine) -> None:
    """Archives have gigabytes. Those of other runs may be under way."""
    for left in ("digits-7f3a-0123456789ab", "digits-7f3a-feedfeedfeed", "other-1111-0123456789ab"):
        (world.images / left).mkdir(parents=True)
        (world.images / left / "image.tar").write_bytes(b"half")
    source, node = world.source(), Node("i-0", wants=True)
    source.prepare(node, world.context())  # type: ignore[arg-type]
    assert node.loaded == b"lab/torch"
    mine, other = sorted(world.images.iterdir())
    assert other.name == "other-1111-0123456789ab"
    assert [path.name for path in mine.iterdir()] == ["image.tar.gz"]
    source.close()
    assert list(world.images.iterdir()) == [other]


def test_two_names_of_one_image_have_an_archive_each(world: World, engine: Engine) -> None:
    """A name is in the archive, and the second must not take the first's away."""
    source = world.source()
    nodes = [Node(f"i-{number}", wants=True) for number in range(3)]
    for node, name in zip(nodes, ("lab/torch", "lab/torch:2", "lab/torch"), strict=True):
        source.prepare(node, world.context(name))  # type: ignore[arg-type]
    assert [node.loaded for node in nodes] == [b"lab/torch", b"lab/torch:2", b"lab/torch"]
    assert engine.saved == ["lab/torch", "lab/torch:2"], "made once for all nodes"
    source.close()
    assert list(world.images.iterdir()) == []


def test_an_archive_that_could_not_be_made_is_made_the_next_time(world: World, engine: Engine) -> None:
    source, node = world.source(), Node("i-0", wants=True)
    engine.fails = True
    with pytest.raises(OSError, match="no room"):
        source.prepare(node, world.context())  # type: ignore[arg-type]
    engine.fails = False
    source.prepare(node, world.context())  # type: ignore[arg-type]
    assert node.loaded == b"lab/torch"


REFUSES = """#!/bin/bash
case $1 in
pull) echo "Error response from daemon: pull access denied for $2: unauthorized" >&2; exit 1;;
inspect|image) exit 1;;
*) echo '["name=seccomp"]';;
esac
"""


@pytest.mark.parametrize("is_foreign", [False, True])
def test_an_image_that_its_registry_refuses_is_the_users_error_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreign: bool
) -> None:
    (tmp_path / "docker").write_text(REFUSES)
    (tmp_path / "docker").chmod(0o755)
    experiment = Experiment(name="train", command="true", container="example.org/private:1")
    recipe = Recipe(name="digits", directory=tmp_path, experiments={"train": experiment})
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})
    paths: Any = SimpleNamespace(root=str(tmp_path / "there"), there=str)
    source = NodeImages(NodeFiles(), paths, {"PATH": str(tmp_path)})
    node: Any = ThisMachine(tmp_path)
    node.result = SimpleNamespace(facts=None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    class Site(LocalSite):
        def bring(self, context: TaskContext) -> None:
            source.prepare(node, context)

    actions = AttemptActions(
        home=home, run="digits-7f3a", recipe=recipe, secrets={}, find_models=lambda *_: [],
        site=Site(), is_foreign=is_foreign,
    )  # fmt: skip
    job = staging.stage(actions.context(Task(experiment="train", number=0, attempt=1)), {})
    assert job.users_fault, job.error
    assert job.error.startswith(
        "experiments.train.container: n1 (10.0.0.5): the image example.org/private:1 is not on this "
        "machine and cannot be pulled: pull access denied for example.org/private:1: unauthorized. "
    )
    assert ("is sent there" in job.error) is not is_foreign
