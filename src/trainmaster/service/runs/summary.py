"""What `--json` prints: the state of runs as plain objects, the same for `run`, `resume` and `status`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster.control.loop.run_state import RUNNING_STATES, tally
from trainmaster.control.task.layout import Home, RunFiles
from trainmaster.db import Database, is_alive, queries
from trainmaster.db.leases import LEASE_S, Holder, holder
from trainmaster.db.run_rows import driven_until
from trainmaster.executors.base import QueuePlace
from trainmaster.service.quotes.quote_record import quote_summary
from trainmaster.spec.errors import UsageError
from trainmaster.spec.facts import Approval, AwaitedApproval, QueuedMachines
from trainmaster.spec.plain_json import parsed_json
from trainmaster.spec.states import WHOLE, EndReason, State
from trainmaster.spec.topics import ADAPTED, GATE_SAID, MODEL_PROMOTED, NOT_PROMOTED, OUTPUT_LOST
from trainmaster.spec.units import counted
from trainmaster.spec.until import stored_end

if TYPE_CHECKING:
    from trainmaster.service.runs.highlights import Highlights, TaskLine

#: A whole sweep's models belong into `trainmaster models RUN`; a summary shows the first ones.
MAX_SHOWN_MODELS = 1000
#: So many of the best tasks of a search are in it.
BEST_TASKS = 5
#: A driver that gives no sign of life for so long is reported: it gives one every five seconds.
DRIVER_SILENT_S = 10.0
#: So many runs are read at once.
_PAGE = 1000
#: Of shorter runs on this machine no phases are followed.
_FOLLOWED_S: Final = 3.0
_SAVING = (State.SAVING, State.RECOVERING)
#: Of what people are shown beside it: running tasks, tasks that did not succeed, notes.
_RUNNING, _BAD, _NOTES, _BESIDE = 10, 5, 4, 3
_BACK: Final = "giving back"


def highlights(database: Database, run: str, files: RunFiles | None = None) -> Highlights:
    """See `Highlights`; with its ``files`` also where tasks are."""
    from trainmaster.service.runs.highlights import Highlights, NoteLine, TaskLine

    def lines(limit: int, **which: Any) -> tuple[TaskLine, ...]:  # noqa: ANN401 - of `queries.tasks`
        rows = queries.tasks(database, run, limit=limit, **which)
        places = None
        if rows and files is not None:
            from trainmaster.service.runs.task_places import TaskPlaces

            places = TaskPlaces(database, files, run)
        return tuple(
            TaskLine(
                row["experiment"],
                row["number"],
                row["attempt"],
                row["reason"],
                row["message"],
                json.loads(row["metrics"]),
                "" if places is None else places.place(row),
                json.loads(row["parameters"]),
            )
            for row in rows
        )

    row = database.run_row(run)
    is_over = row["state"] == State.DONE
    notes = () if is_over else queries.last_notes(database, run, _NOTES)
    left = queries.without_model(database, run) if is_over else ()
    return Highlights(
        () if is_over else lines(_RUNNING, state=State.RUNNING),
        lines(_BAD, bad_only=True),
        tuple(NoteLine(row["at"], row["experiment"], row["task"], row["message"]) for row in notes),
        tuple({**each, "metrics": json.loads(each["metrics"])} for each in left),
        _beside(row, files) if left and files is not None else (),
    )


def _beside(row: RowMapping, files: RunFiles) -> tuple[str, ...]:
    """Files that are in the working directory and were not sent; none where that is elsewhere."""
    try:
        sent = {each.name for each in Path(row["code_path"]).iterdir()}
        there = [each for each in files.code_directory(row["id"]).iterdir() if not each.is_symlink()]
    except OSError:
        return ()
    names = sorted(each.name for each in there if each.is_file() and not each.name.startswith("."))
    return tuple([name for name in names if name not in sent][:_BESIDE])


def run_summary(database: Database, run: str, files: RunFiles | None = None) -> dict[str, Any]:
    """One run: state, counters, models; with its ``files`` also what its tasks have used, as far as was seen.

    One that was sent to a server and stays there has ``bound_to``: ``home``, and ``why``.

    Raises:
        NotFoundError: there is no such run.
    """
    from trainmaster.service.runs.usage_curves import run_usage

    row = database.run_row(run)
    recipe = _stored(row)
    stored = {name: found for name, found in recipe["experiments"].items() if isinstance(found, dict)}
    searches = {name: found.get("search") for name, found in stored.items()}
    verdicts = _verdicts(database, run, stored, is_over=row["state"] == State.DONE)
    asks = any(found.get("approval") for found in stored.values())
    approvals = database.approvals(run) if asks else {}
    experiments: dict[str, Any] = {}
    counts: dict[str, list[RowMapping]] = {}
    for found in database.tallies(run):
        counts.setdefault(found["experiment"], []).append(found)
    rows = database.experiment_rows(run)
    usage = {} if files is None else run_usage(database, files, run, rows)
    for experiment in rows:
        shown: dict[str, Any] = {"state": experiment["state"], "reason": experiment["reason"]}
        if experiment["message"]:
            shown["message"] = experiment["message"]
        of_it = counts.get(experiment["name"], [])
        shown["tasks"] = _tasks(experiment, of_it)
        if saving := sum(found["tasks"] for found in of_it if found["state"] in _SAVING):
            shown["saving"] = saving
        until = stored_end(stored.get(experiment["name"], {}))
        if until is not None:
            ended = sum(found["tasks"] for found in of_it if found["reason"] == EndReason.UNTIL)
            shown["until"] = {"condition": str(until), "reached": ended}
        if begins_with := (stored.get(experiment["name"], {}).get("checkpoint") or {}).get("begins_with"):
            shown["begins_with"] = begins_with
        search = searches.get(experiment["name"])
        if search is not None:
            from trainmaster.service.runs.search_results import best_tasks

            top = best_tasks(database, run, experiment["name"], search, BEST_TASKS)
            asked = {key: search[key] for key in ("metric", "goal")}
            shown["search"] = {**asked, "best": search.get("best", "last")}
            if goes_on := search.get("goes_on"):
                shown["search"]["from"] = goes_on
            shown |= {"best": top[0] if top else None, "top": top}
        shown |= verdicts.get(experiment["name"], {})
        if stored.get(experiment["name"], {}).get("approval"):
            shown |= _approval(experiment, approvals.get(experiment["name"]))
        if experiment["name"] in usage:
            shown["usage"] = usage[experiment["name"]]
        experiments[experiment["name"]] = shown
    models = [
        {
            "experiment": m["experiment"],
            "task": m["task"],
            "uri": m["uri"],
            "metrics": json.loads(m["metrics"]),
            "parameters": json.loads(m["parameters"]),
        }
        for m in queries.models(database, run, limit=MAX_SHOWN_MODELS)
    ]
    now = database.clock_s()
    driven_s = run_seconds(row, now)
    quote = quote_summary(database, run)
    # What is not published lies where it was made: a replica has none of it.
    unsaved = _unsaved(database, files if isinstance(files, Home) else None, run)
    services = _services(database, run) if any(found.get("serve") for found in stored.values()) else []
    workflow = None
    if recipe.get("on"):
        from trainmaster.db.workflow_rows import started_by

        workflow = started_by(database, run)
    return {
        "run": run,
        "state": row["state"],
        "reason": row["reason"],
        **({"message": row["message"]} if row["message"] else {}),
        **({"trimmed_at": row["trimmed_at"]} if row["trimmed_at"] else {}),
        **({} if row["state"] == State.DONE else {"driver": driver(row, now)}),
        "seconds": round(driven_s, 3),
        **_waited(row, now),
        **_queued(row, now),
        **_place(database, row, recipe, files),
        **_phases(database, row, driven_s, [each["name"] for each in rows if each["state"] == State.DONE]),
        "cost_usd": row["cost_usd"],
        **_described(row),
        **_bound(row, is_shared=database.is_shared),
        **({"kept_usd": kept_usd} if (kept_usd := _kept_usd(database, run)) else {}),
        **({"quote": quote} if quote else {}),
        **({"workflow": workflow} if workflow else {}),
        "experiments": experiments,
        "models": models,
        **({"services": services} if services else {}),
        **({"unsaved": unsaved} if unsaved else {}),
    }


def _phases(database: Database, row: RowMapping, driven_s: float, over: Collection[str]) -> dict[str, Any]:
    """What is under way, what is late and when it ends; empty of what is over too soon to be followed.

    One that was just resumed waits for its driver: it is in none of the phases that it was in at its end.
    """
    is_followed = driven_s >= _FOLLOWED_S and row["state"] != State.WAITING
    return phase_summary(database, row, driven_s, over) if is_followed else {}


def _unsaved(database: Database, home: Home | None, run: str) -> list[dict[str, Any]]:
    """What of a run is not saved; without its ``home``, where that lies is not known."""
    found: list[dict[str, Any]] = []
    for row in queries.waiting_saves(database, run):
        what = "model" if row["end_reason"] in WHOLE else "checkpoint"
        found.append(_unsaved_item(home, run, row, what, row["kept_model"]) | {"tries": row["tries"]})
    for row in queries.kept_models(database, run):
        command = f"trainmaster models save {run}"
        found.append(_unsaved_item(home, run, row, "model", row["kept_model"]) | {"command": command})
    return found


def _unsaved_item(home: Home | None, run: str, row: Any, what: str, kept: int | None) -> dict[str, Any]:  # noqa: ANN401
    directory = None
    if home is not None and kept is not None:
        directory = str(home.attempt(run, row["experiment"], row["number"], kept).output("", first=True))
    return {
        "experiment": row["experiment"],
        "task": row["number"],
        "attempt": kept or row["attempt"],
        "what": what,
        "directory": directory,
    }


def _services(database: Database, run: str) -> list[dict[str, Any]]:
    from trainmaster.db import endpoint_rows
    from trainmaster.service.endpoints.endpoint_summaries import endpoint_summaries

    return endpoint_summaries(database, endpoint_rows.of_run(database, run))


def _bound(row: RowMapping, *, is_shared: bool) -> dict[str, Any]:
    """Why only its own server can show and drive what was sent to it; empty if any can."""
    if row["submitted_by"] is None:  # and nothing of that is needed
        return {}
    from trainmaster.service.driving.replicas import why_bound_of

    why = why_bound_of(row, is_shared=is_shared)
    return {"bound_to": {"home": row["home"], "why": why}} if why else {}


def _queued(row: RowMapping, now: float) -> dict[str, Any]:
    """For what it waits: its turn (``waits_for``, ``place``), or what others hold; empty if it does not."""
    if row["queued_at"] is None or row["state"] == State.DONE:
        return {}
    found = json.loads(row["queued_for"])
    if "waits_for" not in found and not is_driven(row, now):
        return {}  # the process that wrote that is gone
    if "waits_for" not in found:
        kind: Any = QueuePlace
        if found.keys() & {"approval", "queue"}:
            kind = AwaitedApproval if "approval" in found else QueuedMachines
        found = {**found, "waits_for": kind(**found).words}
    return {"queued": {"since": row["queued_at"], **found}}


def _place(
    database: Database, row: RowMapping, stored: Mapping[str, Any], files: RunFiles | None
) -> dict[str, Any]:
    """Of a run with several places where it is, where there were no machines, and which are asked next."""
    left, given_up = stored.get("places_left") or [], stored.get("places_given_up") or []
    own = {name: each.get("provider") or [] for name, each in (stored.get("experiments") or {}).items()}
    own = {name: places for name, places in own.items() if places}
    if len({place for places in own.values() for place in places}) > 1:
        from trainmaster.service.runs.task_places import MAX_TASKS, TaskPlaces

        tasks, has_more = ({}, False) if files is None else TaskPlaces(database, files, row["id"]).tasks()
        words = [_places_words(name, places, tasks.get(name, {})) for name, places in own.items()]
        words += [f"only its first {MAX_TASKS} tasks are counted"] * has_more
        shared = {"provider": row["provider"], "next": [], "given_up": [], "experiments": own, "tasks": tasks}
        return {"place": {**shared, "words": "; ".join(words)}}
    words = [f"at {row['provider']}", *(f"no machines at {each}" for each in given_up)]
    words += [f"else {', '.join(left)}"] if left and row["state"] != State.DONE else []
    found = {"provider": row["provider"], "next": list(left), "given_up": list(given_up)}
    return {"place": {**found, "words": "; ".join(words)}} if left or given_up else {}


def _places_words(experiment: str, places: Sequence[str], tasks: Mapping[str, int]) -> str:
    """Where an experiment is; of one in several places how many of its tasks are, or were, in each.

    >>> _places_words("train", ["hosts", "aws"], {"hosts": 4, "aws": 1})
    'train at hosts (4 tasks) and aws (1 task)'
    """
    counts = {place: tasks.get(place, 0) for place in places if len(places) > 1 and tasks}
    told = {place: f" ({counted(count, 'task')})" for place, count in counts.items()}
    return f"{experiment} at {' and '.join(place + told.get(place, '') for place in places)}"


def _stored(row: RowMapping) -> dict[str, Any]:
    """The recipe as JSON; an empty one if that is damaged: the run is still shown."""
    with suppress(ValueError):
        found = parsed_json(row["recipe"])
        if isinstance(found, dict) and isinstance(found.get("experiments"), dict):
            return found
    return {"experiments": {}}


def _verdicts(
    database: Database, run: str, stored: Mapping[str, Any], *, is_over: bool
) -> dict[str, dict[str, Any]]:
    """Of experiments with `require` what the gate said last, of those with `promote` what came of that.

    Of those with `adapt` all that was decided of their machines; of a run that is over, its lost output.
    """
    topics = {OUTPUT_LOST} if is_over else set()
    if any(found.get(key) for found in stored.values() for key in ("require", "promote", "adapt")):
        topics |= {GATE_SAID, MODEL_PROMOTED, NOT_PROMOTED, ADAPTED}
    told: dict[str, dict[str, Any]] = {}
    for row in queries.notes_about(database, run, topics) if topics else ():
        name, message = row["experiment"], row["message"]
        said = told.setdefault(name, {})
        if row["topic"] == GATE_SAID:
            said["gate"] = message.removeprefix(f"gate of {name}: ")
        elif row["topic"] in (MODEL_PROMOTED, NOT_PROMOTED):
            said["promotion"] = message
        elif row["topic"] == ADAPTED:
            said.setdefault("adapted", []).append({"at": row["at"], "words": message})
        else:
            words = f"{name}/{row['task']}: {message}"
            said.setdefault("lost_output", []).append({"at": row["at"], "words": words})
    return told


def _approval(experiment: RowMapping, said: Approval | None) -> dict[str, Any]:
    """Whether a person is asked for it, or what he has said; empty before."""
    if said is not None:
        word = "approved" if said.is_given else "denied"
        return {"approval": {"state": word, "by": said.by, "at": said.at, "why": said.why}}
    is_asked = experiment["state"] == State.WAITING and experiment["message"]
    return {"approval": {"state": "awaited"}} if is_asked else {}


def _kept_usd(database: Database, run: str) -> float:
    """What machines have cost that the run has kept warm, and that no other one uses yet."""
    rows = [row for row in database.clusters_of(run) if row["kept_until"] is not None]
    if not rows:
        return 0.0
    from trainmaster.cluster.record import readable

    now = database.clock_s()  # the cost of damaged ones is unknown: `clusters` lists them
    return sum(record.idle_usd(now) for record in readable(rows, lambda _: None))


def runs_summary(
    database: Database,
    limit: int | None = None,
    after: str | None = None,
    which: queries.RunFilter = queries.ALL_RUNS,
) -> dict[str, Any]:
    """Runs, newest first: all, or a page, and then ``older`` says how many come after it.

    Args:
        database: the database.
        limit: at most so many.
        after: id of a run: only those that come after it.
        which: only these.

    Raises:
        NotFoundError: there is no such run.
        UsageError: the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"{limit} is no number of runs to list", "Give a limit of 1 or more.")
    now = database.clock_s()
    found: list[dict[str, Any]] = []
    last = after
    while limit is None or len(found) < limit:  # in pages: rows are wide, and there may be many
        most = _PAGE if limit is None else min(limit - len(found), _PAGE)
        page = queries.runs(database, most, last, which)
        found += [_brief(row, now) for row in page]
        if len(page) < most:
            break
        last = page[-1]["id"]
    if not found and after is not None:
        database.run_row(after)
    if limit is None:
        return {"runs": found}
    older = queries.count_runs(database, found[-1]["run"], which) if len(found) == limit else 0
    return {"runs": found, "older": older}


def briefs(database: Database, rows: Sequence[RowMapping]) -> list[dict[str, Any]]:
    """The lines of runs in `runs_summary`, of their rows."""
    now = database.clock_s()
    return [_brief(row, now) for row in rows]


def run_brief(database: Database, run: str) -> dict[str, Any]:
    """The line of one run in `runs_summary`: quicker than `run_summary`, to be asked for often.

    Raises:
        NotFoundError: there is no such run.
    """
    return _brief(database.run_row(run), database.clock_s())


def _brief(row: RowMapping, now: float) -> dict[str, Any]:
    found = driver(row, now)  # looked for once: that is most of the work of a long list
    return {
        "run": row["id"],
        "state": row["state"],
        "reason": row["reason"],
        "created_at": row["created_at"],
        "seconds": round(
            run_seconds(row, now, is_driven=None if row["state"] == State.DONE else bool(found)), 3
        ),
        **_queued(row, now),
        **_waited(row, now),
        "cost_usd": row["cost_usd"],
        "driven": found is not None,
        "driver": found,
        **({"owner": row["submitted_by"]} if row["submitted_by"] else {}),
        **({"team": row["team"]} if row["team"] else {}),
        **_described(row),
    }


def _described(row: RowMapping) -> dict[str, Any]:
    """What people have written on it; empty if that is nothing."""
    labels = json.loads(row["labels"]) if row["labels"] != "{}" else {}
    return {**({"labels": labels} if labels else {}), **({"note": row["note"]} if row["note"] else {})}


def run_seconds(row: RowMapping, now: float, *, is_driven: bool | None = None) -> float:
    """How long a run has been driven, over all its sessions, until its machines were given back.

    Args:
        row: of the run.
        now: Unix seconds of `Database.clock_s`.
        is_driven: whether a living process drives it, if that was looked for already.
    """
    if row["session_at"] is None:
        return 0.0
    is_closing = row["closed_at"] is None and (row["ended_at"] or 0.0) >= row["session_at"]
    if is_driven is None and (row["state"] != State.DONE or is_closing):
        is_driven = is_alive(row["lease_owner"], row["lease_expires_at"], now)
    end = now if is_driven else driven_until(row, now)  # later than now, if the clock was set back since
    return float(row["earlier_s"] + max(0.0, end - row["session_at"]))


def queued_seconds(row: RowMapping, now: float) -> float:
    """How long of that it has waited for what other runs hold."""
    waits_s = 0.0
    if row["queued_at"] is not None:
        end = now if is_driven(row, now) else driven_until(row, now)
        waits_s = max(0.0, end - row["queued_at"])
    return float(row["queued_s"] + waits_s)


def _waited(row: RowMapping, now: float) -> dict[str, float]:
    waited_s = round(queued_seconds(row, now), 3)
    return {"queued_s": waited_s} if waited_s else {}


def is_driven(row: RowMapping, now: float) -> bool:
    """True if a living process drives the run. ``now``: Unix seconds of `Database.clock_s`."""
    if row["state"] == State.DONE:
        return False
    return _is_driven_away(row) or is_alive(row["lease_owner"], row["lease_expires_at"], now)


def _is_driven_away(row: RowMapping) -> bool:
    """Whether a machine of a run drives it: until the object store, if that can be read, says otherwise."""
    is_away = row["state"] != State.DONE and row["away"] is not None
    return is_away and not json.loads(row["away"]).get("lost", False)


def driver(row: RowMapping, now: float) -> dict[str, Any] | None:
    """The process that drives a run, and whether it works; None without one.

    Args:
        row: of the run.
        now: Unix seconds of `Database.clock_s`.

    Returns:
        ``state`` (``working``, ``stopped`` or ``silent``), ``pid`` (null on another machine), ``silent_s``,
        and ``machine`` if one of the run's own drives it.
    """
    found = None
    if row["state"] != State.DONE:
        found = holder(row["lease_owner"], row["lease_expires_at"], now)
    if found is None and _is_driven_away(row):  # it renews its lease here through the object store only
        found = Holder(0, False, max(now - ((row["lease_expires_at"] or now) - LEASE_S), 0.0))
    if found is None:
        return None
    state = "stopped" if found.is_stopped else "silent" if found.silent_s > DRIVER_SILENT_S else "working"
    machine = {} if row["away"] is None else {"machine": json.loads(row["away"])["machine"]}
    return {"state": state, "pid": found.pid or None, "silent_s": round(found.silent_s, 1), **machine}


def _tasks(experiment: RowMapping, counts: list[RowMapping]) -> dict[str, int]:
    ended: Counter[EndReason] = Counter()
    running = created = 0
    for found in counts:
        created += found["tasks"]
        if found["state"] == State.DONE:
            ended[EndReason(found["reason"])] += found["tasks"]
        elif found["state"] in RUNNING_STATES:
            running += found["tasks"]
    rest = EndReason(experiment["rest_reason"]) if experiment["rest_reason"] else None
    return tally(experiment["tasks_total"], ended, running=running, rest_reason=rest, created=created)


def phase_summary(
    database: Database, row: RowMapping, driven_s: float, over: Collection[str]
) -> dict[str, Any]:
    """Of one run; empty where its phases were not followed.

    Args:
        database: the database.
        row: of the run.
        driven_s: for how long it has been driven.
        over: experiments that have ended.

    Returns:
        ``phases`` (by experiment, see `PhaseLine.as_dict`), ``late`` (the one that is most, with its
        ``experiment``) and, while it goes on, ``ends`` (``time_s``: of the whole run without waiting).
    """
    stored = json.loads(database.forecast_of(row["id"]) or "{}")
    if not stored:
        return {}
    from trainmaster.control.measure.run_phases import PhaseProgress

    phases, late = {}, []
    for name, data in stored["courses"].items():
        course = PhaseProgress.of_dict(data)
        if row["ended_at"] is not None:
            end_s = row["earlier_s"] + max(row["ended_at"] - row["session_at"], 0.0)
            course = course.seen("", end_s).seen(_BACK if _BACK in course.expected else "", end_s)
            course = course if row["closed_at"] is None else course.seen("", driven_s)
        lines = list(course.lines(driven_s, is_over=name in over or row["ended_at"] is not None))
        phases[name] = [line.as_dict() for line in lines]
        late += [(line.late_s, {"experiment": name, **line.as_dict()}) for line in lines if line.late_s]
    found: dict[str, Any] = {"phases": phases}
    if late:
        found["late"] = max(late, key=lambda each: each[0])[1]
    passed = [why for name, why in stored.get("passed", {}).items() if name not in over]
    if passed and row["ended_at"] is None:
        found["passed"] = "; ".join(passed)
    if stored["ends"] and row["ended_at"] is None:
        found["ends"] = stored["ends"]
    return found
