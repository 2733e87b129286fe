"""Starts a TensorFlow script on the members of a gang with `framework: plain`; the chief sits with worker 0.

`python3 with_chief.py SCRIPT ARGUMENTS...`. Gangs of `framework: tensorflow` need none of this, and have
a chief by themselves; on rented machines that one finds no place yet when the parameter server has a machine
of its own.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

PORT, CHIEF_PORT, END_PORT = 2222, 2223, 2224
PATIENCE_S = 300


def start(cluster, role, index):
    """The script as one of TensorFlow's processes; only the chief's reports are the member's."""
    config = {"cluster": cluster, "task": {"type": role, "index": index}}
    return subprocess.Popen(
        [sys.executable, *sys.argv[1:]], env={**os.environ, "TF_CONFIG": json.dumps(config)}
    )


def until_the_end(host):
    """Returns when the chief has gone: it holds the connection as long as it lives."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection((host, END_PORT), timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    connection.settimeout(None)
    with contextlib.suppress(ConnectionResetError):
        connection.recv(1)


def main():
    *workers, server = os.environ["TRAINMASTER_HOSTS"].split(",")
    cluster = {
        "chief": [f"{workers[0]}:{CHIEF_PORT}"],
        "ps": [f"{server}:{PORT}"],
        "worker": [f"{worker}:{PORT}" for worker in workers],
    }
    role, index = os.environ["TRAINMASTER_ROLE"], int(os.environ["TRAINMASTER_INDEX"])
    served = start(cluster, role, index)
    try:
        if (role, index) != ("worker", 0):
            until_the_end(workers[0])
            return 0
        with socket.create_server(("", END_PORT), backlog=len(workers) + 1):
            return start(cluster, "chief", 0).wait()  # waiting connections end with this process
    finally:
        served.kill()


if __name__ == "__main__":
    sys.exit(main())
