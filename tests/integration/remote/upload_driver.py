"""A control process of a run on nodes that does one thing, and may be killed when the test says so."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainmaster.cluster.node_files import direct_store
from trainmaster.cluster.node_files.remote_site import RemoteSite
from trainmaster.control.attempt import saving
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.layout import Home
from trainmaster.spec import Distributed, Experiment, Recipe
from trainmaster.transport.host_keys import HostKeys
from trainmaster.transport.ssh import Ssh, SshSettings

#: When it kills itself: with everything uploaded and nothing committed, or right after the commit.
BEFORE: Final = "before"
AFTER: Final = "after"


def start(hosts: Any, job: str, moment: str = "", attempt: int = 1) -> subprocess.Popen[bytes]:
    """Start one.

    Args:
        hosts: the nodes of the test.
        job: a function of `saving`.
        moment: `BEFORE`, `AFTER`, or empty for none.
        attempt: of the task.
    """
    nodes = [replace(node, transport=None) for node in hosts.nodes]
    known = hosts.tmp_path / "tm-home" / "known_hosts"
    given = (hosts.home, hosts.root, str(hosts.tmp_path), str(known), nodes, job, moment, attempt)
    order = hosts.tmp_path / "order"
    order.write_bytes(pickle.dumps(given))
    return subprocess.Popen([sys.executable, __file__, order])


def main() -> None:
    """Do it."""
    home, root, directory, known, bare, job, moment, attempt = pickle.loads(Path(sys.argv[1]).read_bytes())
    with Ssh(HostKeys(Path(known)), SshSettings(connect_timeout_s=60.0)) as ssh:
        nodes = [replace(node, transport=ssh) for node in bare]
        site = RemoteSite(
            home,
            "digits-7f3a",
            nodes_of=lambda _: [(node.seat, node) for node in nodes],
            all_nodes=lambda _: nodes,
            root=root,
            node_sizes=lambda _: [(2, 0)] * len(nodes),
            patience_s=5.0,
        )
        if moment:
            _die(moment)
        done = getattr(saving, job)(_context(home, Path(directory), site, attempt))
        site.close()
    sys.exit(done.error or 0)


def _context(home: Home, directory: Path, site: RemoteSite, attempt: int) -> Any:
    experiment = Experiment(name="train", command="python train.py", distributed=Distributed(workers=2))
    actions = AttemptActions(
        home=home,
        run="digits-7f3a",
        recipe=Recipe(name="digits", directory=directory, experiments={"train": experiment}),
        secrets={},
        find_models=lambda *_: [],
        site=site,
    )
    return actions.context(Task(experiment="train", number=0, attempt=attempt))


def _die(moment: str) -> None:
    commit = direct_store.publish_uploads

    def publish(*arguments: Any, **options: Any) -> None:
        if moment == AFTER:
            commit(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    direct_store.publish_uploads = publish  # type: ignore[assignment]


if __name__ == "__main__":
    main()
