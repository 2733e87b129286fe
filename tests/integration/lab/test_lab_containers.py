"""`container: IMAGE` on rented machines: a gang in containers stops, saves and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from private_engines import IMAGE, NoEngineError, PrivateEngine, make_image
from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.container, pytest.mark.timeout(900)]
#: Each member leaves a process behind, whose parent is then the monitor of its container.
RECIPE = f"""
name: steps
experiments:
  train:
    container: {IMAGE}
    distributed: {{strategy: allreduce, workers: 2}}
    framework: plain
    hardware: {{instance: m4.large}}
    secrets: [TOKEN]
    data: {{images: {{volume: images}}}}
    grace: 20s
    command: |
      echo "image $FROM_IMAGE, part ${{TOKEN#battery }}, $(cat "$TRAINMASTER_DATA_IMAGES/deep/a")"
      mine=$TRAINMASTER_CHECKPOINT_DIR/saved-$TRAINMASTER_INDEX
      if [[ -e $mine ]]; then
        cat "$mine" | tee "$TRAINMASTER_OUTPUT_DIR/model-$TRAINMASTER_INDEX"
        exit
      fi
      trap 'echo "saved by $TRAINMASTER_INDEX" > "$mine"; exit 3' TERM
      wait_for_a_signal='while :; do sleep 600 & wait; done'
      (bash -c "trap 'echo left process is asked; exit' TERM; echo ready; $wait_for_a_signal" &)
      eval "$wait_for_a_signal"
"""


def test_a_gang_in_containers_stops_saves_and_goes_on(renter: Renter, lab: Any) -> None:
    before, images = lab.alive(), renter.work.parent / "images"
    (images / "deep").mkdir(parents=True)
    (images / "deep/a").write_text("of the volume\n")
    try:
        engine = PrivateEngine("podman", make_image(("bash", "cat", "sleep", "tee"), python=False))
    except NoEngineError as error:
        pytest.skip(str(error))
    with engine:
        renter.env |= engine.env | {"TOKEN": "battery staple"}
        renter.call("volume", "push", images, "images")
        first = renter.run(renter.recipe(RECIPE))
        logs = [lab.home / "runs" / first.run / f"tasks/train/0/1/worker-{index}.log" for index in (0, 1)]
        first.until(lambda: all("ready" in text_of(log) for log in logs), "both members work")
        inside = renter.call("exec", first.run, "worker-1", "--", 'echo "$(command -v python3 || echo none)"')
        assert inside.stdout == "none\n", "the image has none, the machine does"
        machine = renter.call("exec", first.run, "node-1", "--", "command -v python3")
        assert machine.stdout.endswith("/python3\n")
        first.interrupt()
        first.end(130)
        assert lab.alive() == before, "whoever interrupts it has everything given back"
        for log in logs:
            assert "image yes, part staple, of the volume\n" in log.read_text()
            assert "left process is asked" in log.read_text()
        found = renter.start("resume", first.run, "--json").end()
        assert found["reason"] == "SUCCEEDED"
    said = renter.call("logs", first.run).stdout
    assert {"saved by 0", "saved by 1"} <= {line.split("| ")[-1] for line in said.splitlines()}
    assert len(found["models"]) == 1


def text_of(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
