"""An image that is built by the command line: machines that start from it have what `setup` made."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
MADE = """
name: made
experiments:
  train:
    hardware: {instance: m4.large}
    setup: echo made > $VIRTUAL_ENV/made
    command: stat -c %Y $VIRTUAL_ENV/made; ls /var/tmp/trainmaster-*/runs
"""


@pytest.mark.crossings  # what is asked of AWS: `test_aws_images.py`
def test_machines_start_with_what_an_image_has(renter: Renter, lab: Any) -> None:
    before, recipe = lab.alive(), renter.recipe(MADE)
    built = renter.call("image", "build", recipe, "--provider", "lab", "--yes", "--json")
    (image,) = json.loads(built.stdout)["images"]
    assert lab.alive() == before, "its machine is given back"
    assert f"image {image['id']} in us-east-1 is ready" in built.stderr
    assert (image["is_ready"], image["usd_per_month"]) == (True, 0.0)
    assert json.loads(renter.call("image", "ls", "--json").stdout)["images"] == [image]

    found = renter.run(recipe).end()
    assert found["reason"] == "SUCCEEDED"
    made_at, *runs = [line.split("| ")[-1] for line in renter.call("logs", found["run"]).stdout.splitlines()]
    assert float(made_at) <= image["made_at"], "setup did not run again"
    assert runs == [found["run"]], "nothing of the run that made the image is there"

    assert "removed" in renter.call("image", "rm", image["id"]).stderr
    assert "no such image" in renter.call("image", "rm", image["id"]).stderr
