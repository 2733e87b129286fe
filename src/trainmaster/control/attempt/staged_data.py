"""Data that are staged into an HDFS: where they are, for members; and on this machine, how they get there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.attempt.data_sources import HDFS
from trainmaster.hdfs.configuration import data_directory
from trainmaster.hdfs.serving import RunningHdfs, serve, served_as_json
from trainmaster.hdfs.staging import data_path, fetch_output, stage
from trainmaster.hdfs.watchdog import write
from trainmaster.spec.errors import fails_as
from trainmaster.spec.locking import locked
from trainmaster.spec.plain_json import typed

if TYPE_CHECKING:
    from trainmaster.control.task.job_context import TaskContext

_HERE: Final = "127.0.0.1"
#: By the HDFS's id, URLs that this process has seen whole in it: short tasks begin many at a time.
_whole: set[tuple[str, str]] = set()


def note_served(context: TaskContext, served: RunningHdfs) -> None:
    """Write down which HDFS holds what the experiment's members read."""
    path = _note(context)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, served_as_json(served))


def addresses(context: TaskContext) -> dict[str, str]:
    """Variables with the URLs of data that were staged, and of where the task may write.

    Raises:
        UsageError: the place is not configured.
    """
    served = _served(context)
    places = {f"DATA_{name.upper()}": data_path(url_of(context, name)) for name in context.staged}
    found = {}
    for name, path in (*places.items(), ("OUTPUT_HDFS", _output(context))):
        found[f"TRAINMASTER_{name}"] = f"hdfs://{served.address}:{served.rpc_port}{path}"
        found[f"TRAINMASTER_{name}_WEBHDFS"] = f"webhdfs://{served.web}{path}"
    return found


def output_of(context: TaskContext) -> tuple[str, str, Path]:
    """Host and port of WebHDFS, the path that a task may write to there, and where that becomes its output.

    Raises:
        UsageError: no HDFS is configured.
    """
    first = context.place.output(context.members[0], first=True)
    return _served(context).web, _output(context), first / HDFS


def fetch_output_here(context: TaskContext) -> None:
    """Have what a task has written into the HDFS of this machine in its output directory.

    Raises:
        TrainmasterError: HDFS does not do as it should.
    """
    fetch_output(*output_of(context))


def _output(context: TaskContext) -> str:
    """The same for all attempts of a task: the next one goes on with what is there."""
    return f"/output/{context.experiment.name}/{context.task}"


def _served(context: TaskContext) -> RunningHdfs:
    with fails_as("where the HDFS is was not noted", "Start the run again.", on=(OSError, ValueError)):
        return typed(RunningHdfs, json.loads(_note(context).read_bytes()))


def url_of(context: TaskContext, name: str) -> str:
    """The URL that is staged."""
    return context.experiment.data[name].url_with(context.variables)


def stage_here(context: TaskContext, name: str) -> None:
    """Have an HDFS on this machine, and copy data into it.

    Raises:
        UsageError: there is no Hadoop here.
        TrainmasterError: the store cannot be read, or HDFS does not do as it should.
    """
    place = context.home.data_directory(context.run) / HDFS
    venv = str(context.venv or "")
    with locked(place):
        source = context.experiment.data[name]
        served = serve(place, _HERE, None, copies=1, hadoop=source.hadoop or "", venv=venv)
        url = url_of(context, name)
        if (served.id, url) not in _whole:
            stage(url, served.web, index=0, count=1, copies=1, directory=data_directory(place))
            _whole.add((served.id, url))
    note_served(context, served)


def _note(context: TaskContext) -> Path:
    return context.home.data_directory(context.run) / f"{HDFS}-{context.experiment.name}.json"
