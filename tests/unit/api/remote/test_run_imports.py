"""What a command line loads that asks a server."""

import subprocess
import sys

PROGRAM = """
import sys
import trainmaster.cli.app, trainmaster.cli.driving, trainmaster.cli.quote, trainmaster.cli.renting
from trainmaster.api.remote import asking, directory_tar, following, remote
from trainmaster.executors.telemetry.metrics import StepRate
from trainmaster.service import Note, ProfilePhase, ProfileProgress, capabilities_of
from trainmaster.service.runs import highlights
from trainmaster.spec import read_recipe
print(sorted({"sqlalchemy", "numpy", "asyncio", "rich"} & set(sys.modules)))
"""


def test_run_on_a_server_needs_no_database_here():
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, env=environment)
    assert done.stdout.decode() == "[]\n"
