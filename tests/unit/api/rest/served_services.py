"""A service of a run, with one replica that is ready."""

from __future__ import annotations

import sqlalchemy as sa

from trainmaster.db import endpoint_changes
from trainmaster.db import tables as t
from trainmaster.db.changes import EndpointChange, ReplicaChange


def add_service(database, run, name, port, version="digits@1"):
    now = database.clock_s()

    def write(connection, _):
        team = connection.execute(sa.select(t.run.c.team).where(t.run.c.id == run)).scalar_one()
        new = endpoint_changes.NewEndpoint("main", name, "digits@production")
        endpoint_changes.registering([new], run, team, now, lambda _: None)(connection)
        endpoint_changes.write_endpoint(connection, run, EndpointChange("main", {"version": version}))
        values = {"version": version, "state": "READY", "port": port, "ready_at": now}
        endpoint_changes.write_replica(connection, run, ReplicaChange("main", 0, values), now)

    database.write(write)
