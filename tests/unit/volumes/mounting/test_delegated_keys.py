"""Credentials of a mount's processes: from memory to memory, and anew as they run out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainmaster.objects.delegated_credentials import EXPIRES_VARIABLE
from trainmaster.volumes.mounting.delegated_credentials import hand_over, renew

# As a mount's process does: it takes over, and later asks for what there is by then.
PROCESS = """
import sys, os
from trainmaster.volumes.mounting.delegated_credentials import take_over
from trainmaster.objects.renewing import renewed_amazon
take_over()
keys = renewed_amazon()
for line in os.fdopen(int(sys.argv[1])):
    found = keys() if keys else None
    print(found and (found["access_key_id"], found["secret_access_key"], found["token"]), flush=True)
"""


def keys(number: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": f"id-{number}",
        "AWS_SECRET_ACCESS_KEY": "secret" * number,
        "AWS_SESSION_TOKEN": f"token-{number}",
    }


@pytest.fixture
def mounted(monkeypatch, tmp_path):
    """A process that was handed the environment's keys for a mount at a directory; asks it for its keys."""
    ended = []

    def start(environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        reading, writing = os.pipe()
        lent = hand_over()
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(reading), "serve", str(tmp_path)],
            stdin=lent, stdout=subprocess.PIPE, text=True, pass_fds=[reading],
        )  # fmt: skip
        os.close(lent)
        os.close(reading)
        ended.append((process, writing))

        def ask():
            os.write(writing, b"now\n")
            return process.stdout.readline().strip()

        return ask

    yield start
    for process, writing in ended:
        os.close(writing)
        process.communicate(timeout=30)


def test_a_process_has_the_keys_that_were_written_last(mounted, monkeypatch, tmp_path):
    ask = mounted({**keys(3), EXPIRES_VARIABLE: "1000000"})
    assert ask() == "('id-3', 'secretsecretsecret', 'token-3')"
    for name, value in keys(1).items():  # shorter ones: nothing of the old ones is left
        monkeypatch.setenv(name, value)
    assert renew(str(tmp_path)) == 1
    assert ask() == "('id-1', 'secret', 'token-1')"


def test_another_mounts_process_is_left_alone(mounted, tmp_path):
    ask = mounted({**keys(1), EXPIRES_VARIABLE: "1000000"})
    assert renew(f"{tmp_path}/other") == 0
    assert ask() == "('id-1', 'secret', 'token-1')"


def test_keys_that_last_are_not_kept_to_be_renewed(mounted, monkeypatch, tmp_path):
    monkeypatch.delenv(EXPIRES_VARIABLE, raising=False)
    ask = mounted(keys(1))
    assert ask() == "None"
    assert renew(str(tmp_path)) == 0
