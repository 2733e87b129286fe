"""`drive_in_background`: a run gets a driver process of its own, which outlives whoever has started it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service.driving.driving import Session
    from trainmaster.service.service import Service

#: A background process that has not taken its run after this long is left to itself.
TAKEN_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.02


def drive_in_background(
    service: Service, session: Session, environ: Mapping[str, str], *, on_cluster: bool = False
) -> None:
    """Hand a run to a process of its own that gives up this terminal; returns once it has taken it.

    Args:
        service: of the home that ``environ`` names.
        session: of the run; its lease is given up.
        environ: of that process.
        on_cluster: it drives it only until the run's first machine can.

    Raises:
        TrainmasterError: it ended at once.
    """
    directory = service.home_of(session.run).run_directory(session.run)
    directory.mkdir(parents=True, exist_ok=True)
    service.database.release(session.lease, time.time())
    path = directory / "control.log"
    with path.open("ab") as log:
        driver = subprocess.Popen(
            # -P: a file called signal.py in the user's folder is none of ours
            [
                sys.executable,
                "-P",
                "-m",
                "trainmaster",
                "_drive",
                session.run,
                *(["--on-cluster"] if on_cluster else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=dict(environ),
        )
    # Our child: where the caller lives on, as a notebook does, it must not stay a zombie.
    threading.Thread(target=driver.wait, name=f"end of {session.run}", daemon=True).start()
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while not service.is_taken(session.run) and time.monotonic() < deadline:
        if driver.returncode:
            said = path.read_text(errors="replace").strip().splitlines()[-1:] or ["without a word"]
            raise TrainmasterError(
                f"the background process of {session.run} ended at once: {said[0]}",
                f"Its whole output: {path}. `trainmaster resume {session.run}` tries again.",
            )
        time.sleep(_POLL_S)
