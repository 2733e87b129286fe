"""What a machine must have at least, and may have at most."""

from __future__ import annotations

import pytest

from trainmaster.spec import Hardware, Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.hardware import Most


def hardware(text: str) -> Hardware:
    return Recipe.from_text(f"experiments: {{e: {{command: x, hardware: {text}}}}}").experiments["e"].hardware


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("{gpus: 1..4}", {"gpus": 1}, Most(gpus=4)),
        ("{gpus: 2, most: {gpus: 4}}", {"gpus": 2}, Most(gpus=4)),
        ("{gpu: {type: H100, count: 2..8}}", {"gpu": "H100", "gpus": 2}, Most(gpus=8)),
        ("{cpus: 4 .. 8, memory: 16..64GB}", {"cpus": 4, "memory_bytes": 16 * 10**9},
         Most(cpus=8, memory_bytes=64 * 10**9)),
        ("{gpu_memory: 24GB..40, most: {cpus: 8}}", {"gpu_memory_bytes": 24 * 10**9},
         Most(gpu_memory_bytes=40 * 10**9, cpus=8)),
        ("{gpus: 1..}", {"gpus": 1}, None),
    ],
)  # fmt: skip
def test_ranges_are_a_least_and_a_most(text: str, least: dict[str, object], most: Most | None) -> None:
    found = hardware(text)
    assert {name: getattr(found, name) for name in least} == least
    assert found.most == most
    assert (found.fixed_gpus is None) == (most is None or most.gpus is not None or "gpus" not in least) or (
        found.fixed_gpus == least["gpus"]
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{gpus: 4..1}", "hardware.gpus: the least is more than the most"),
        ("{gpus: 1..4, most: {gpus: 2}}", "hardware.most.gpus: `gpus` has an upper end already"),
        ("{gpus: 1..many}", "hardware.gpus: the text '1..many'"),
        ("{gpu: {type: H100, count: 1..2000}}", "hardware.gpu.count: the number 2000; write a number of at"),
    ],
)
def test_ranges_that_are_none_are_refused_where_they_stand(text: str, words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        hardware(text)
    assert words in str(refused.value)


def test_a_machine_with_enough_shared_memory_has_twice_as_much_in_all() -> None:
    assert hardware("{shm_size: 8GB}").rented_memory_bytes == 16 * 10**9
    assert hardware("{shm_size: 8GB, memory: 32GB}").rented_memory_bytes == 32 * 10**9
    assert hardware("{}").rented_memory_bytes is None
