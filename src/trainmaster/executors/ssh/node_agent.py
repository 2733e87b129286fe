"""A node's agent for a driver with SSH: `python -m trainmaster.executors.ssh.node_agent NODE`.

With what `Agent` takes as JSON it serves one driver over its standard input and output. When that has gone,
another process looks after gangs over several nodes until the next driver comes: each node asks the others
how their parts are, by the keys that let the nodes of a cluster in to each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmaster.executors.base import GangStatus
from trainmaster.executors.gangs.agent import Agent, AgentProgram, Records
from trainmaster.executors.gangs.life import UnattendedGangs, parts_elsewhere
from trainmaster.executors.ssh import AGENT_PROGRAM, STATUSES
from trainmaster.executors.supervisor.processes import forbid_core_dumps
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmaster.executors.gangs.agent import Elsewhere, Seen

#: Nodes are asked this often at most, and so many times within the lease at least. Of many each answers one
#: login in two seconds: a login takes some 0.15 s of its processors.
_PAUSE_S = 15.0
_PAUSE_PER_NODE_S = 2.0
_ROUNDS = 8
#: While a driver is there, a node is asked this often in the end, until one has answered.
_LONG_PAUSE_S = 3600.0
#: Logging in to a busy node takes long.
_ANSWER_S = 30.0
#: When their driver has gone, all nodes ask all others in the same moment, and `sshd` turns logins away from
#: the tenth on that is under way (`MaxStartups`). So each asks few at once, in an order of its own.
_AT_ONCE = 4


def serve(node: Mapping[str, Any]) -> None:
    """Serve one driver; leave behind what looks after its gangs when it has gone."""
    agent, records = Agent(node), Records(node["home"])
    records.meet(())  # keys and networks may have changed since an earlier driver
    if node["to_others"]:
        threading.Thread(target=_meet, args=(node, records), name="meet", daemon=True).start()

    def leave() -> None:
        token = agent.orphan()
        if token and node["to_others"] and parts_elsewhere(records.load()):
            import subprocess  # a node begins sooner without what it needs later

            subprocess.Popen(
                [sys.executable, "-m", AGENT_PROGRAM, json.dumps(node), "tend", token, *records.met()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    AgentProgram(agent).serve(leave)


def _meet(node: Mapping[str, Any], records: Records) -> None:
    """Find out whether nodes reach each other while they surely live: one that answers is enough."""
    pause_s = _pause_s(node)
    while not records.met():
        time.sleep(pause_s)
        if parts := parts_elsewhere(records.load()):
            import random

            other = random.choice(list(parts))  # noqa: S311 - so that not all ask the same one
            if _elsewhere(node, {other: parts[other]}):
                records.meet(other[:1])
            pause_s = min(pause_s * 2, _LONG_PAUSE_S)  # they may not be let in: do not knock for ever


def tend(node: Mapping[str, Any], token: str, met: Sequence[str]) -> None:
    """Look after gangs over several nodes, until none lives here or another driver is served.

    Args:
        node: this one.
        token: of the driver that has gone.
        met: ids of nodes that have answered before.
    """
    agent, records = Agent(node), Records(node["home"])
    agent.orphan()
    rules, lives = UnattendedGangs(node["lease_s"], met), True
    while lives:
        time.sleep(_pause_s(node, len(parts_elsewhere(records.load()))))
        if records.served() != token:
            return
        try:
            lives = agent.tend(rules, partial(_elsewhere, node))
        except (TrainmasterError, OSError):  # its supervisor is out of reach
            rules = UnattendedGangs(node["lease_s"], met)


def _pause_s(node: Mapping[str, Any], others: int = 1) -> float:
    return min(max(_PAUSE_S, others * _PAUSE_PER_NODE_S), float(node["lease_s"]) / _ROUNDS)


def _elsewhere(node: Mapping[str, Any], parts: Elsewhere) -> Seen:
    """Of parts on other nodes; those that do not answer are left out: unreachable is not dead."""
    import random
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    def of(other: tuple[str, str]) -> list[GangStatus]:
        command = [*node["to_others"], other[1], node["statuses"]]
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
            done = subprocess.run(
                command,
                input=json.dumps(parts[other]).encode(),
                capture_output=True,
                timeout=_ANSWER_S,
                check=True,
            )
            return [GangStatus.of_row(row) for row in json.loads(done.stdout)]
        return []

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = pool.map(of, random.sample(list(parts), len(parts)))
        return {each.attempt: each for found in asked for each in found}


def main(arguments: list[str]) -> None:
    """Serve a driver, look after gangs without one, or tell how parts are that standard input names."""
    forbid_core_dumps()
    node, *rest = arguments
    about = json.loads(node)
    match rest:
        case [str(word)] if word == STATUSES:
            print(json.dumps(Agent(about).statuses(json.loads(sys.stdin.buffer.read()))))  # noqa: T201
        case ["tend", token, *met]:
            tend(about, token, met)
        case _:
            serve(about)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
