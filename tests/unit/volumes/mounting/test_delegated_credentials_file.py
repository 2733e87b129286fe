"""Credentials reach a mount's processes, and show nowhere on the way."""

import os
import subprocess
import sys

from trainmaster.volumes.mounting import delegated_credentials
from trainmaster.volumes.mounting.server import environment

_CHILD = """
import os
from trainmaster.volumes.mounting.delegated_credentials import take_over

take_over()
print(os.environ["AWS_SECRET_ACCESS_KEY"], os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY"))
print(b"hush" in open("/proc/self/environ", "rb").read(), os.readlink("/proc/self/fd/0"))
"""


def test_they_go_through_memory(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "h" * 70_000)
    given = environment()
    assert "hush" not in given.values()
    descriptor = delegated_credentials.hand_over()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            stdin=descriptor,
            env=given,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        os.close(descriptor)
    assert done.stdout.split() == ["hush", "h" * 70_000, "False", "/dev/null"]


def test_without_any_nothing_changes(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    assert delegated_credentials.open_environment() == dict(os.environ)
    child = "from trainmaster.volumes.mounting.delegated_credentials import take_over; take_over()"
    subprocess.run([sys.executable, "-c", child], stdin=subprocess.DEVNULL, check=True)
