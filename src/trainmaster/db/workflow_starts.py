"""`begin`: what makes a start of a workflow STARTED, in the transaction that writes its run."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import State

_F = t.workflow_firing.c
STARTED: Final = "STARTED"


class StartTakenError(UsageError):
    """The run of this start is there, or it is to wait: nothing was written (HTTP 409)."""


def begin(connection: Connection, firing: int, run: str) -> str:
    """Note that a run is that of a start; what to tell of it.

    Raises:
        StartTakenError: it has a run already, is not to have one any more, or another run is under way.
    """
    query = sa.select(_F.workflow_id, _F.trigger, _F.cause, _F.message, t.workflow.c.name)
    query = query.join(t.workflow, t.workflow.c.id == _F.workflow_id).where(_F.id == firing)
    found = connection.execute(query).first()
    if found is None:
        raise StartTakenError(f"start {firing} was removed with its workflow")
    # One run of a workflow begins at a time, whichever of its triggers wants it.
    held = sa.select(t.workflow.c.id).where(t.workflow.c.id == found.workflow_id).with_for_update()
    connection.execute(held)
    others = sa.select(_F.run_id).join(t.run, t.run.c.id == _F.run_id)
    others = others.where(_F.workflow_id == found.workflow_id, t.run.c.state != State.DONE)
    if (other := connection.execute(others).scalar()) is not None:
        raise StartTakenError(f"{other} of {found.name} is under way")
    waits = (_F.id == firing, _F.state == "WAITING")
    started = t.workflow_firing.update().where(*waits).values(state=STARTED, run_id=run)
    if not connection.execute(started).rowcount:
        raise StartTakenError(f"start {firing} of {found.name} has a run, or is not to have one any more")
    skipped = f"; {found.message}" if found.message else ""
    return f"started by workflow {found.name}: {found.trigger}, {found.cause}{skipped}"
