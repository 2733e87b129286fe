"""What a cloud tells the server's machine is not for tasks of teams: all addresses, served for real.

In a network of its own, where each address of `cloud_metadata` is one of the machine's.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_server_local_runs import Shared, users

from trainmaster.service.cloud_metadata import ADDRESSES

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "iptables", "ip6tables", "nsenter"))):
    pytest.skip("networks of their own need root, iproute2 and iptables", allow_module_level=True)

__all__ = ["users"]
NEW_NETWORK = 0x40000000
ASK = """\
import socket, sys
for where in sys.argv[1:]:
    address, _, port = where.rpartition("-")
    try:
        socket.create_connection((address, int(port)), 20).close()
        print(address, port, "answered", flush=True)
    except OSError as error:
        print(address, port, type(error).__name__, flush=True)
"""
EVERYTHING = " ".join(f"{address}-80" for address in (*ADDRESSES, "127.0.0.1"))


@pytest.fixture
def network():
    """This thread, and what is started with that prefix, are in a network in which a cloud answers."""
    libc, name = ctypes.CDLL(None, use_errno=True), f"tmtest{secrets.token_hex(3)}"
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    subprocess.run(["ip", "netns", "add", name], check=True)
    server = None
    try:
        place = os.open(f"/run/netns/{name}", os.O_RDONLY)
        assert libc.setns(place, NEW_NETWORK) == 0
        os.close(place)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for address in ADDRESSES:
            subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
        serving = [sys.executable, "-m", "http.server", "80", "--bind", "::"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(
            serving, cwd="/var/empty" if Path("/var/empty").is_dir() else "/mnt", **quiet
        )
        yield f'exec nsenter --net=/run/netns/{name} "$@";'
    finally:
        assert libc.setns(before, NEW_NETWORK) == 0
        os.close(before)
        if server is not None:
            server.kill()
            server.wait()
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture
def shared(tm, users, network):
    def begin(how="user:tmtest-{team}"):
        found = Shared(tm, how, network)
        found.red = f"red{users}"
        return found

    return begin


def asked(shared, where=EVERYTHING):
    """What a task of a team has from each address."""
    run = shared.run(shared.red, ASK, command=f"python3 train.py {where}")
    assert shared.end(run)["reason"] == "SUCCEEDED", shared.tm.logs(run)
    lines = [line.split("] ")[-1].split()[-3:] for line in shared.tm.logs(run).splitlines()]
    return {f"{address}-{port}": what for address, port, what in lines}


def rules():
    found = [
        subprocess.run([tool, "-S"], capture_output=True, text=True, check=True).stdout for tool in TOOLS
    ]
    return [line for text in found for line in text.splitlines() if "-j TRAINMASTER-" in line]


TOOLS = ("iptables", "ip6tables")


def reaches(address, port=80):
    with socket.create_connection((address, port), 20):
        return True


def test_a_task_reaches_nothing_where_a_cloud_tells_its_credentials(shared, tm):
    server = shared()
    server.add_team(server.red)
    server.start()
    with socket.create_server(("169.254.169.254", 53)):
        found = asked(server, f"{EVERYTHING} 169.254.169.254-53")
    assert found.pop("127.0.0.1-80") == "answered"
    assert found.pop("169.254.169.254-53") == "answered"  # where Google's machines ask for names
    assert found == {f"{address}-80": "ConnectionRefusedError" for address in ADDRESSES}
    assert all(map(reaches, ADDRESSES))  # of the server, and of whatever else the machine does
    for tool in TOOLS:
        subprocess.run([tool, "-F", "OUTPUT"], check=True)
    assert set(asked(server, "169.254.169.254-80 fd00:ec2::254-80").values()) == {"ConnectionRefusedError"}

    run = server.run(server.red, "import time; time.sleep(600)")
    tm.until(lambda: (server.attempt(run) / "worker-0.log").exists(), "it runs")
    server.process.send(signal.SIGINT)
    server.process.wait()
    assert len(rules()) == 2  # tasks go on without the server
    server.start()
    server.process.kill()
    server.start()
    assert len(rules()) == 2
    server.ask("POST", f"/runs/{run}/cancel")
    server.end(run)
    server.process.send(signal.SIGINT)
    server.process.wait()
    assert rules() == []


def without_rules(tm):
    """A machine whose packet filter is not for us."""
    place = tm.root / "bin"
    place.mkdir()
    for tool in TOOLS:
        (place / f"{tool}-restore").write_text("#!/bin/sh\necho 'you must be root' >&2\nexit 4\n")
        (place / f"{tool}-restore").chmod(0o755)
    tm.env["PATH"] = f"{place}:{tm.env['PATH']}"


def test_a_server_does_not_start_where_tasks_would_reach_it_unless_it_is_told_so(shared, tm):
    without_rules(tm)
    refused = shared().begin("server", "--port", "0").wait(2)
    for words in (*ADDRESSES, "you must be root", "user,metadata"):
        assert words in refused.err
    told = shared("user:tmtest-{team},metadata")
    told.add_team(told.red)
    told.start()
    assert asked(told, "169.254.169.254-80") == {"169.254.169.254-80": "answered"}


def test_where_nothing_answers_a_server_says_that_there_is_no_rule(shared, tm):
    without_rules(tm)
    for address in ADDRESSES:
        subprocess.run(["ip", "address", "delete", address, "dev", "lo"], check=False)
    server = shared().begin("server", "--port", "0")
    server.until(lambda: "tasks of teams" in server.err, "it has started")
    assert "none answers: iptables-restore: you must be root" in server.err
    server.send(signal.SIGINT)
    server.wait()
