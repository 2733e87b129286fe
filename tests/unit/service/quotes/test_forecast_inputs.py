"""What a forecast is made of."""

from __future__ import annotations

import pytest

from trainmaster.service.quotes.forecast_inputs import gang_nodes, machines_of_workers
from trainmaster.spec import Recipe


@pytest.mark.parametrize(
    ("hardware", "gpus", "machines"),
    [
        ("gpus: 1..8", 4, 2),  # the machine that was had decides
        ("gpus: 1..8", 8, 1),
        ("gpus: 2", 4, 4),
        ("cpus: 2", 0, 8),
    ],
)
def test_machines_of_a_gang_by_the_gpus_that_they_have(hardware, gpus, machines):
    text = "{name: x, experiments: {train: {command: c, hardware: {%s}, distributed: {workers: 8}}}}"
    experiment = Recipe.from_text(text % hardware).experiments["train"]
    assert machines_of_workers(experiment, gpus) == machines
    assert gang_nodes(experiment, 1, gpus) == 1
