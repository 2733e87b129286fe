"""What `doctor` looks at: each finding says what was found and, if it is bad, what to do."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from trainmaster.control.task.layout import Home
from trainmaster.db import Database, queries
from trainmaster.executors.base import Capacity
from trainmaster.executors.capacity import detect_capacity
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.objects import ObjectStore
from trainmaster.providers.capabilities import BUILT_IN, capabilities_of
from trainmaster.providers.examining import Finding, cuda_of_image, examined, refused
from trainmaster.providers.plugins import PROVIDERS, get_provider, told_of_own_logins
from trainmaster.service.background import begun
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.frameworks import FEW_MACHINES, packages_of
from trainmaster.spec.recipe_parts import in_place, named_places
from trainmaster.spec.states import State
from trainmaster.spec.units import counted, format_duration

LOW_DISK_BYTES = 2 << 30


def checkup(home: Home) -> list[Finding]:
    """Look at everything; never raises for what it finds."""
    return [
        *_machine(),
        *_disk(home),
        *_database(home),
        *_kept(),
        *_local_runs(home),
        *_object_store(home),
        *_supervisor(home),
        *_many_machines(home),
        *_mounts(),
        *_places(home),
    ]


def places_checkup(
    service: Service,
    places: Sequence[str],
    recipe: Recipe | None,
    environ: Mapping[str, str],
    *,
    limit_s: float | None = None,
) -> list[Finding]:
    """Look at places where machines are, all at once; nothing is rented, and never raises for what it finds.

    Args:
        service: of the home.
        places: names of providers; without any, those of the recipe.
        recipe: that is to run there: drivers are compared with its frameworks, its machines asked for.
        environ: of the caller: settings and credentials.
        limit_s: a place that has not answered by then is wrong; without, each is waited for.

    Raises:
        UsageError: there is no such place, or none is named.
    """
    names = [*dict.fromkeys(places or (named_places(recipe) if recipe else ()))]
    for name in names:
        if name not in BUILT_IN:
            PROVIDERS.check(name)
    looks = {name: begun(partial(_place_checkup, service, name, recipe, environ), "doctor") for name in names}
    done, _ = concurrent.futures.wait(looks.values(), limit_s)
    found = list[Finding]()
    for name, look in looks.items():
        seen = look.result() if look in done else [_silent(name, limit_s or 0.0)]
        found += [replace(each, what=f"{name}: {each.what}") for each in seen]
    return found


def _silent(name: str, limit_s: float) -> Finding:
    advice = (
        "Is it up, is its address right, and does no firewall drop what is sent there? "
        f"`trainmaster doctor --provider {name}` waits longer, and says more."
    )
    return Finding("login", f"has not answered in {limit_s:g} s", ok=False, advice=advice)


def _place_checkup(
    service: Service, name: str, recipe: Recipe | None, environ: Mapping[str, str]
) -> list[Finding]:
    from trainmaster.service.places.place import asked_place

    seen = list[Finding]()
    if not capabilities_of(name).is_here:
        try:
            place = service.place(name, environ)
            provider = get_provider(name, place)
        except TrainmasterError as error:
            return [refused("settings", error)]
        try:
            own = [Finding("account", f"the login of team {place.team}")] if place.team else []
            seen = [*own, *examined(provider, _builds(recipe), told_of_own_logins(name, place))]
        finally:
            provider.close()
    if recipe is not None and all(each.ok for each in seen if each.what == "login"):
        asked = asked_place(service, in_place(recipe, name), environ)
        words = asked.line.removeprefix(f"{name}: ")
        seen.append(Finding(recipe.name, words, not asked.refusal, asked.hint))
    return seen


def _builds(recipe: Recipe | None) -> dict[str, str]:
    """Packages that a recipe's frameworks need, and for which CUDA their images are built."""
    found = dict[str, str]()
    for experiment in recipe.experiments.values() if recipe else ():
        if packages := packages_of(experiment.framework):
            found[packages.package] = cuda_of_image(experiment.container or "")
    return found


def other_places(home: Home) -> dict[str, bool]:
    """Places other than this machine that can be looked at; whether this home has settings for them."""
    names = [name for name in (*BUILT_IN, *PROVIDERS.plug_ins()) if not capabilities_of(name).is_here]
    return {name: (home.root / f"{name}.yaml").exists() for name in names}


def _places(home: Home) -> Iterator[Finding]:
    if names := [name for name, is_set_up in other_places(home).items() if is_set_up]:
        advice = "`trainmaster doctor --provider NAME` looks at one."
        yield Finding("places", f"settings for {', '.join(names)}", advice=advice)


def _machine() -> Iterator[Finding]:
    capacity = detect_capacity()
    count = len(capacity.gpus)
    gpus = f", {counted(count, 'GPU')}" if count else ", no GPU"
    yield Finding(
        "machine", f"{counted(capacity.cores, 'core')}, {capacity.memory_bytes / 2**30:.1f} GiB memory{gpus}"
    )
    if count and importlib.util.find_spec("pynvml") is None:
        advice = "pip install 'trainmaster[gpu]' to see how busy they are, and their memory."
        yield Finding("GPUs", "not installed: nvidia-ml-py", advice=advice)
    yield Finding("python", f"{sys.version.split()[0]} at {sys.executable}")
    tools = (("bash", "every command"), ("git", "code: a git URL"), ("ssh", "`trainmaster ssh`"))
    for tool, needed_for in tools:
        path = shutil.which(tool)
        advice = "" if path else f"Install {tool}; it is needed for {needed_for}."
        yield Finding(tool, path or "not found", bool(path) or tool != "bash", advice)
    from trainmaster.executors.containers.engines import find_engine

    try:
        engine = find_engine(os.environ)
        yield Finding("containers", f"{engine.kind} at {engine.program}")
    except TrainmasterError as error:
        said = error.args[0].removeprefix("`container` needs ")
        yield Finding(
            "containers", f"no {said}", advice=f"They are needed for `container` only. {error.hint}"
        )


def _disk(home: Home) -> Iterator[Finding]:
    free = shutil.disk_usage(home.root).free
    ok = free >= LOW_DISK_BYTES
    yield Finding(
        "home",
        f"{home.root}, {free / 2**30:.1f} GiB free",
        ok,
        "" if ok else "Free some space, or move TRAINMASTER_HOME.",
    )


def _database(home: Home) -> Iterator[Finding]:
    try:
        database = Database(home.database_url)
        runs, now = queries.runs(database), database.clock_s()
    except TrainmasterError as error:
        yield Finding("database", str(error).splitlines()[0], ok=False, advice=error.hint)
        return
    orphaned = [row["id"] for row in runs if row["state"] != "DONE" and not is_driven(row, now)]
    many = counted(len(runs), "run")
    yield Finding("database", f"{database.engine.url.render_as_string()}, {many}")
    if orphaned:
        yield Finding(
            "runs",
            f"nobody drives {', '.join(orphaned[:5])}",
            advice="`trainmaster resume RUN` goes on, `cancel` ends.",
        )
    database.close()


def _kept() -> Iterator[Finding]:
    from trainmaster.service.retention import VARIABLE, told

    try:
        yield Finding("kept by a server", told(os.environ))
    except TrainmasterError as error:
        yield Finding(VARIABLE, str(error), ok=False, advice=error.hint)


def _local_runs(home: Home) -> Iterator[Finding]:
    from trainmaster.service.driving.local_runs import VARIABLE, local_runs_of

    try:
        if found := local_runs_of(home, os.environ.get(VARIABLE), os.environ, keeps=False):
            yield Finding("tasks of teams here", found)
    except TrainmasterError as error:
        yield Finding("tasks of teams here", str(error), ok=False, advice=error.hint)


def _object_store(home: Home) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        ObjectStore(home.store_url).check_writable()
    except (TrainmasterError, OSError) as error:
        advice = (
            error.hint
            if isinstance(error, TrainmasterError)
            else "Set TRAINMASTER_STORE to a place that you can write."
        )
        yield Finding("store", f"{home.store_url}: {str(error).splitlines()[0]}", ok=False, advice=advice)
        return
    yield Finding(
        "store", f"{home.store_url}, write and delete took {1000 * (time.monotonic() - began):.0f} ms"
    )


def _supervisor(home: Home) -> Iterator[Finding]:
    executor = LocalExecutor(home.root)
    began = time.monotonic()
    try:
        executor.open("doctor", Capacity(slots=1), {})
    except TrainmasterError as error:
        yield Finding("tasks", str(error).splitlines()[0], ok=False, advice=error.hint)
        return
    finally:
        executor.close()
    yield Finding(
        "tasks", f"the process that runs them answers after {1000 * (time.monotonic() - began):.0f} ms"
    )


def _many_machines(home: Home) -> Iterator[Finding]:
    """What other machines need, and which are rented now."""
    whys = {
        "asyncssh": "[hosts]' for other machines",
        "boto3": "[aws]' for EC2 and the lab",
        "ray": f"[ray]' for more than {FEW_MACHINES} machines at a time",
    }
    missing = [part for part in whys if importlib.util.find_spec(part) is None]
    if missing:
        advice = "\n".join(f"pip install 'trainmaster{whys[part]}." for part in missing)
        yield Finding("other machines", f"not installed: {', '.join(missing)}", advice=advice)
    try:
        database = Database(home.database_url)
        rows = database.living_clusters(None, home.identity())
    except TrainmasterError:
        return  # told by the database's own finding
    database.close()
    now = time.time()
    for row in rows:
        what = f"{row['id']} ({row['provider']}), {row['state']}"
        if row["state"] == "PLANNED":
            continue  # nothing of it was ever asked for
        if row["state"] == "KEPT":
            left_s = (row["kept_until"] or now) - now
            if left_s <= 0:
                continue
            yield Finding("machines", f"{what}: warm for {format_duration(left_s)} more")
        elif row["run_state"] == State.DONE:
            yield Finding(
                "machines",
                f"{what}: its run is over",
                ok=False,
                advice=f"`trainmaster clusters end {row['id']}` gives them back; they end themselves too.",
            )
        else:
            yield Finding("machines", f"{what}, of {row['run_id']}")


def _mounts() -> Iterator[Finding]:
    from trainmaster.volumes.mounting import available

    why_not = available()
    advice = "Volumes that a recipe names are fetched whole instead." if why_not else ""
    yield Finding("mounts of volumes", why_not or "possible", advice=advice)
