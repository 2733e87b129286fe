"""The measuring minute of what trains for a target: noise of gradients of a job whose noise is known."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainmaster import library

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch")
NOISE = Path(library.__file__).parent / "noise"
#: Of 50 numbers, each .1 in the mean with noise of 1: tr(Sigma) / |G|^2 is 100 examples.
SCRIPT = """
import sys, torch
torch.manual_seed(0)
batch, weights = int(sys.argv[1]), torch.nn.Parameter(torch.zeros(50))
optimizer = torch.optim.SGD([weights], 1e-3)
for step in range(400):
    optimizer.zero_grad()
    ((0.1 + torch.randn(batch, 50)) @ weights).mean().backward()
    optimizer.step()
print("whole")
"""


def run(tmp_path, script, *arguments, **more):
    # As a share of the time it would depend on the machine: every second pair of steps.
    text = (NOISE / "sitecustomize.py").read_text().replace("_MOST_SHARE = 0.01", "_MOST_SHARE = 9.0")
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise/sitecustomize.py").write_text(text)
    metrics = tmp_path / "metrics.jsonl"
    env = {**os.environ, "TRAINMASTER_METRICS": str(metrics), "PYTHONPATH": str(tmp_path / "noise"), **more}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, check=True
    )
    rows = metrics.read_text().splitlines() if metrics.exists() else []
    return done.stdout, [json.loads(row)["trainmaster.gradient_noise"] for row in rows]


def test_it_is_the_noise_over_the_signal_in_batches(tmp_path):
    out, found = run(tmp_path, SCRIPT, "8")
    assert out == "whole\n"
    assert len(found) > 100
    assert found[-1] == pytest.approx(100 / 8, rel=0.3)


def test_what_the_scripts_python_has_by_that_name_is_loaded_too(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('own')")
    paths = os.pathsep.join(map(str, (tmp_path / "noise", tmp_path / "own")))
    out, found = run(tmp_path, "import json; print('job')", PYTHONPATH=paths)
    assert (out, found) == ("own\njob\n", [])
