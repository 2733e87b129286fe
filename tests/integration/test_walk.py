"""`scripts/walk.py` counts the files that a task runs through, up to the start of its bash."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "walk.py"


def test_a_task_is_followed_from_its_request_to_its_bash() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--json"], check=True, capture_output=True, timeout=120)
    walks = json.loads(done.stdout)
    task = list(walks["task"]["files"])
    assert task[0] == "control/loop/attempt_actions.py"
    assert "executors/local/executor.py" in task
    assert {"executors/supervisor/gang_manager.py", "executors/supervisor/members.py"} < set(task)
    assert walks["task"]["processes"] == 2
    assert "artifacts/publishing.py" in walks["checkpoint"]["files"]
    assert "control/measure/progress.py" in walks["metric"]["files"]
