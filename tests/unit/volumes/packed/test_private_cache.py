import os
import subprocess
import sys

PROGRAM = """
import os, sys
from trainmaster.volumes.packed.opening import private_cache
place, _ = private_cache()
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
print(place, place.is_dir())
"""


def test_the_end_of_a_forked_process_does_not_remove_it():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=20, check=True
    )
    place, was_there = done.stdout.split()
    assert was_there == "True"
    assert not os.path.exists(place), "at its own end it goes"  # noqa: PTH110
