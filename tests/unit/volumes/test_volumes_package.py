import subprocess
import sys

from trainmaster import volumes


def test_every_public_name_is_there():
    assert set(volumes.__all__) == set(volumes._HOME)
    for name in volumes.__all__:
        assert getattr(volumes, name).__name__ == name if name != "JSON" else volumes.JSON


def test_importing_it_loads_nothing():
    program = """
import sys, trainmaster
before = set(sys.modules)
import trainmaster.volumes
print([name for name in set(sys.modules) - before if name.startswith(("trainmaster", "obstore", "json"))])
from trainmaster.volumes import take_snapshot, publish, fetch, CheckpointSeries
print([name for name in ("obstore", "pathspec", "zipfile", "concurrent.futures") if name in sys.modules])
"""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment)
    assert result.stdout.decode().splitlines() == ["['trainmaster.volumes']", "[]"]
