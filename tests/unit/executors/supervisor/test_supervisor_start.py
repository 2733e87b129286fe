"""The supervisor must start fast and without anything that was installed."""

import subprocess
import sys
from pathlib import Path

import trainmaster

SOURCE = str(Path(trainmaster.__file__).parents[1])


def test_needs_only_the_standard_library():
    program = (
        f"import sys; sys.path.append({SOURCE!r}); "
        "import trainmaster.executors.supervisor.program; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    modules = done.stdout.split()
    ours = {name for name in modules if name.startswith("trainmaster.")}
    others = {"trainmaster.executors.base", "trainmaster.executors.local.executor", "trainmaster.spec"}
    assert not ours & others
    heavy = {"asyncio", "dataclasses", "subprocess", "typing", "pathlib", "inspect", "logging", "psutil"}
    assert not heavy & set(modules)


def test_what_has_a_log_on_a_full_disk_goes_on():
    with Path("/dev/full").open("wb") as log:
        code = "from trainmaster.executors.supervisor.program import note; note('x'); note('y')"
        subprocess.run([sys.executable, "-c", code], stderr=log, check=True)
