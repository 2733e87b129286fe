"""`drive_in_background`: a run gets a driver process of its own, which outlives the one that started it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.service.background import begun_apart
from trainmaster.spec.errors import TrainmasterError, one_line

if TYPE_CHECKING:
    from trainmaster.service.driving.execution_backend import Session
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
    run = session.run
    service.database.release(session.lease)
    _start(service, run, environ, ["--on-cluster"] if on_cluster else [], lambda: service.is_taken(run))


def go_on_here(service: Service, environ: Mapping[str, str], tell: Callable[[str], None], run: str) -> str:
    """Have a process of its own drive a run whose driver on a machine is lost; say so, or why that cannot be.

    The quicker one has it. Without the values of its secrets it is left to somebody who has them.

    Args:
        service: of the home.
        environ: of that process.
        tell: shows a line to the user.
        run: its id.

    Returns:
        Why it cannot be driven from here; empty if it is.
    """
    from trainmaster.service.driving.provider_connection import check_provider

    def is_taken() -> bool:
        return service.database.run_row(run)["away"] is None and service.is_taken(run)

    try:
        row = service.database.run_row(run)
        place = service.of_team(row["team"]).place(row["provider"], environ)
        check_provider(row["provider"], place)
        service.secrets_of(service.replicas.recipe(row), service.replicas.with_secrets(row, environ))
        _start(service, run, environ, ["--lost"], is_taken)
    except TrainmasterError as error:
        why = one_line(error)
        tell(f"{run}: its driver on its machine is gone, and it cannot be driven from here: {why}")
        return why
    tell(f"{run}: its driver on its machine is gone; it goes on, driven from here in the background")
    return ""


def _start(
    service: Service, run: str, environ: Mapping[str, str], options: list[str], is_taken: Callable[[], bool]
) -> None:
    directory = (service.home_if_here(run) or service.home).run_directory(run)  # it may have to be taken over
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "control.log"
    driver = begun_apart("_drive", run, *options, environ=environ, log=path)
    # Our child: where the caller lives on, as a notebook does, it must not stay a zombie.
    threading.Thread(target=driver.wait, name=f"end of {run}", daemon=True).start()
    deadline = time.monotonic() + TAKEN_WITHIN_S
    # Ended in good order, it has left the run to who was quicker.
    while driver.returncode != 0 and not is_taken() and time.monotonic() < deadline:
        if driver.returncode:
            said = path.read_text(errors="replace").strip().splitlines()[-1:] or ["without a word"]
            raise TrainmasterError(
                f"the background process of {run} ended at once: {said[0]}",
                f"Its whole output: {path}. `trainmaster resume {run}` tries again.",
            )
        time.sleep(_POLL_S)
