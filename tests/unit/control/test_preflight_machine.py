"""What this machine can never give is refused before anything starts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainmaster.control.checks.preflight import check_all, check_machine, recipe_notes
from trainmaster.executors.capacity import NodeCapacity
from trainmaster.executors.containers import command_line
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError

MACHINE = NodeCapacity(cores=4, memory_bytes=8_000_000_000, gpus=("GPU-a", "GPU-b"))


def recipe(**experiment: Any) -> Recipe:
    return Recipe.from_text(
        str({"provider": "local", "experiments": {"train": {"command": "x", **experiment}}})
    )


@pytest.mark.parametrize(
    ("hardware", "workers", "words"),
    [
        ({"cpus": 2}, 3, "hardware.cpus: 2 for each of 3 members, this machine has 4"),
        ({"memory": "9GB"}, 1, "hardware.memory: 9GB, this machine has 8.0 GB"),
        ({"memory": "9GiB"}, 1, "hardware.memory: 9GiB, this machine has 7.5 GiB"),
        ({"gpus": 3}, 3, "hardware.gpus: 1 for each of 3 members, this machine has 2"),
        ({"gpus": 1}, 3, "hardware.gpus: 1 for each of 3 members, this machine has 2"),
        ({"gpus": 4}, 2, "hardware.gpus: 4, this machine has 2"),
        ({"gpus": 3}, 1, "hardware.gpus: 3, this machine has 2"),
    ],
)
def test_a_gang_that_can_never_fit_is_refused(hardware: dict[str, Any], workers: int, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"experiments.train.{words}")):
        check_machine(recipe(hardware=hardware, distributed={"workers": workers}), MACHINE)


@pytest.mark.parametrize(
    ("gpus", "distributed", "said"),
    [
        (
            2,
            {"workers": 1},
            "1 of the 2 GPUs of a machine are used, by 1 worker; set `workers: 2` or `per_node: 1`",
        ),
        (4, {"workers": 6, "per_node": 3}, "used, by 3 workers; set a `per_node` that divides 4"),
        (2, {"workers": 1, "per_node": 1}, ""),
        (2, {"workers": 2}, ""),
        (8, {"workers": 3}, "used, by 3 workers; set `workers: 8` or a `per_node` that divides 8"),
    ],
)
def test_gpus_that_no_worker_would_use_are_told(gpus: int, distributed: dict[str, Any], said: str) -> None:
    notes = recipe_notes(recipe(hardware={"gpus": gpus}, distributed=distributed))
    assert [said in each for each in notes] == [True] * bool(said)


def test_a_task_that_can_never_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hardware\.gpus: 3, this machine has 2"):
        check_machine(recipe(hardware={"gpus": 3}), MACHINE)


def test_all_that_a_machine_has_not_is_told_with_its_lines() -> None:
    with pytest.raises(RecipeError) as caught:
        check_machine(recipe(hardware={"gpus": 3, "memory": "64GiB"}), MACHINE)
    assert [mistake.key_path for mistake in caught.value.mistakes] == [
        "experiments.train.hardware.gpus",
        "experiments.train.hardware.memory",
    ]


def test_each_refusal_is_told_once() -> None:
    def refuse(*words: str) -> None:
        raise UsageError(*words)

    with pytest.raises(UsageError) as caught:
        check_all(
            lambda: refuse("a", "Do b."), lambda: None, lambda: refuse("a", "Do b."), lambda: refuse("c")
        )
    assert caught.value.args[0].splitlines() == ["a. Do b.", "c"]


def test_what_a_machine_has_is_shared_by_the_workers_here_as_on_nodes() -> None:
    gang = {"distributed": {"workers": 2, "per_node": 2}}
    assert check_machine(recipe(hardware={"gpus": 2, "cpus": 4}, **gang), MACHINE) == []
    with pytest.raises(UsageError, match=r"hardware\.cpus: 4 for each of 2 members"):
        check_machine(recipe(hardware={"cpus": 8}, **gang), MACHINE)


def test_a_gang_that_fits_is_not() -> None:
    assert check_machine(recipe(hardware={"gpus": 1, "cpus": 2}, distributed={"workers": 2}), MACHINE) == []


def test_shared_memory_that_is_not_there_is_told_with_what_makes_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_line, "shared_bytes", lambda: 4 * 10**9)
    assert check_machine(recipe(hardware={"shm_size": "4GB"}), MACHINE) == []
    (note,) = check_machine(recipe(hardware={"shm_size": "6GB"}), MACHINE)
    assert "/dev/shm of this machine has 4.0 GB; `mount -o remount,size=6000000000 /dev/shm`" in note
