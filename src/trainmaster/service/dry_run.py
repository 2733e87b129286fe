"""`dry_run`: what a run would do, in the words of what does it; nothing is rented, sent or written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from trainmaster.advisor.quote.quote import PlaceRow
from trainmaster.control.checks.framework_notes import framework_notes
from trainmaster.control.checks.preflight import check_parts
from trainmaster.control.task.environment import member_environment
from trainmaster.control.task.gangs import gang_of, member_names
from trainmaster.launchers import get_launcher
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.places.table import PlaceTable
from trainmaster.service.quotes.worker_counts import with_fewest
from trainmaster.service.renting.provider_check import planned_requests
from trainmaster.service.service import Service
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.recipe_parts import named_places, parts_by_place
from trainmaster.sweeps import first_parameters

#: What is known only when it runs stands as requests have it.
_RUN: Final = "${run.Id}"
_PLACE: Final = "${attempt.Directory}"
_HOST: Final = "${host.Address}"
#: A run takes ports that are free.
_FIRST_PORT: Final = 29500
#: The variables of a process may name all others of its gang: of larger gangs fewer processes are shown.
_MOST_NAMED: Final = 1 << 18


def dry_run(service: Service, recipe: Recipe, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a run would do.

    Returns:
        ``requests`` that renting its machines, or claiming hosts, would send, in order; ``processes`` of the
        first task of each experiment with the variables that are theirs; ``notes``; where a recipe names
        several places, ``places``: a row of each, see `PlaceRow`.

    Raises:
        UsageError: what it asks for is not there.
    """
    told_of_places: list[str] = []
    places: tuple[PlaceRow, ...] = ()
    if len(named_places(recipe)) > 1:
        from trainmaster.service.models.starting_models import with_versions
        from trainmaster.service.places.settling import settled_place

        asked = with_versions(service, recipe)
        seen = PlaceTable(service, asked, environ)
        recipe = settled_place(service, asked, environ, told_of_places.append, seen)
        places = _rows(recipe, seen)
    probe = with_fewest(recipe)
    check_parts(probe)
    requests: list[dict[str, Any]] = []
    notes = [*told_of_places, *recipe.notes, *framework_notes(probe, environ)]
    if recipe.on:
        notes.append(f"nothing of it runs now: `on` has a server keep it as the workflow {recipe.name}")
    if len(parts_by_place(recipe)) < 2:
        names = (name for name, each in probe.experiments.items() if each is not recipe.experiments[name])
        notes += [
            f"{name}: with the fewest workers: a run takes as many as its quote chooses" for name in names
        ]
    if not capabilities_of(recipe.provider).is_here:
        requests, told = planned_requests(service, recipe, environ)
        notes += told
    processes: list[dict[str, Any]] = []
    room = _MOST_NAMED
    for name in probe.order():
        size = sum(role.count for role in probe.experiments[name].members())
        shown = min(size, room // size)
        room -= shown * size
        processes += _processes(probe.experiments[name], probe.seed, shown) if shown else ()
        if shown < size:
            notes.append(f"{name}: {shown} of its {size} processes are shown; the others are alike")
    table = {"places": [each.as_dict() for each in places]} if places else {}
    return {"requests": requests, "processes": processes, "notes": notes, **table}


def _rows(settled: Recipe, seen: PlaceTable) -> tuple[PlaceRow, ...]:
    """What each of its places would take; of those where the run is, their part of it."""
    parts = [part.provider for part in parts_by_place(settled)]
    if len(parts) > 1:
        from trainmaster.service.places.quote import quote_in_places

        with suppress(TrainmasterError):  # planning says it
            return quote_in_places(settled, seen).places
    return seen.rows(parts)


def _processes(experiment: Experiment, seed: int, most: int) -> list[dict[str, Any]]:
    """The first members of its first task."""
    parameters = first_parameters(experiment, seed)
    launcher, count = get_launcher(experiment.launcher), experiment.summary()["tasks"]
    ports: dict[str, tuple[int, ...]] = {
        f"{role}-{index}": tuple(_FIRST_PORT + port for port in range(launcher.ports_per_member(role)))
        for role, index in member_names(experiment)
    }
    gang = gang_of(experiment, _HOST, ports)
    identity = {
        "TRAINMASTER_RUN": _RUN,
        "TRAINMASTER_EXPERIMENT": experiment.name,
        "TRAINMASTER_TASK": "0",
        "TRAINMASTER_ATTEMPT": "1",
        **experiment.environment(parameters),
        **experiment.env,
        **dict.fromkeys(experiment.secrets, "***"),
        **{f"TRAINMASTER_DATA_{name.upper()}": f"${{data.{name}}}" for name in experiment.data},
        "TRAINMASTER_CHECKPOINT_DIR": f"{_PLACE}/checkpoint",
    }
    return [
        {
            "experiment": experiment.name,
            "task": 0,
            "of": count,
            "member": member.name,
            "command": launcher.script(gang, member, experiment.script(parameters)),
            "container": experiment.container,
            "setup": experiment.setup,
            "variables": member_environment(
                gang,
                member,
                launcher,
                {},
                {
                    **identity,
                    "TRAINMASTER_OUTPUT_DIR": f"{_PLACE}/output",
                    "TRAINMASTER_METRICS": f"{_PLACE}/metrics/{member.name}.jsonl",
                },
                None,
            ),
        }
        for member in gang.members[:most]
    ]
