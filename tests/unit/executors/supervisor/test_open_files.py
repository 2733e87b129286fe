"""A driver may open many files; what it starts has the limit of its caller."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

PROGRAM = """
import json, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from trainmaster.executors.supervisor import processes
processes.raise_limit()
processes.raise_limit()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
before = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[0]
processes.give_back(child.pid)
after = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[0]
child.kill()
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE)[0], before, after]))
"""


def test_the_limit_is_raised_for_this_process_and_not_for_what_it_starts():
    said = subprocess.run([sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE).stdout
    ours, before, after = json.loads(said)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    assert (ours, before, after) == (most, most, 256)
