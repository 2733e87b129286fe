"""Before anything starts: does this version have what the recipe asks for, and this machine too?"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainmaster.control.task.gangs import (
    gpus_of,
    member_names,
    slots_of,
    slots_per_member,
    tasks_here,
    workers_per_node,
)
from trainmaster.executors.base import Capacity
from trainmaster.executors.capacity import NodeCapacity
from trainmaster.launchers import get_launcher
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import DataSource, Experiment, Recipe
from trainmaster.spec.errors import MissingPartError, RecipeError, TrainmasterError, UsageError, one_line
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.redaction import has_secret
from trainmaster.spec.roles import is_requirements
from trainmaster.spec.units import counted


def check_all(*checks: Callable[[], object]) -> None:
    """Make all checks, and tell everything that they refuse in one go, each once.

    Raises:
        UsageError: what one refuses, or a line for each mistake.
    """
    refusals = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    of_recipe = [error for error in refusals if isinstance(error, RecipeError)]
    if refusals and len(of_recipe) == len(refusals):
        mistakes = {mistake: None for each in of_recipe for mistake in each.mistakes}
        in_order = sorted(mistakes, key=lambda mistake: (mistake.file, mistake.line, mistake.column))
        raise RecipeError(of_recipe[0].file, in_order)
    lines: dict[str, None] = {}
    for each in refusals:
        lines |= dict.fromkeys([one_line(each)] if each.hint else each.args[0].splitlines())
    if lines:
        raise UsageError("\n".join(lines))


def check_parts(recipe: Recipe) -> None:
    """Refuse what this version cannot do yet, naming each key and the missing part.

    Raises:
        MissingPartError: with one line per key.
        UsageError: there is no such provider.
    """
    check_names(recipe)
    check_baking(recipe)
    check_roles(recipe)
    missing = list(_missing(recipe))
    if missing:
        raise MissingPartError(
            "\n".join(missing),
            "The recipe can be read, but this cannot be run.",
        )


def check_baking(recipe: Recipe) -> None:
    """Refuse images where a provider makes none, or of what does not belong into one.

    Raises:
        UsageError: naming the key.
    """
    if not recipe.bake:
        return
    with _named(recipe, "bake"):
        for place in named_places(recipe):
            require_baker(place)
    for experiment in recipe.experiments.values():
        for key in ("data", "roles"):
            if getattr(experiment, key):
                with _named(recipe, "experiments", experiment.name, key):
                    raise UsageError(
                        "an image is made of its machines: it would be in there for later runs",
                        "Leave it out, as `trainmaster image build` does.",
                    )
    if not any(each.setup or each.container for each in recipe.experiments.values()):
        with _named(recipe, "bake"):
            raise UsageError(
                "no experiment has `setup` or `container`: there is nothing to put into an image",
                "Its machines start from the provider's own image.",
            )


def require_baker(provider: str) -> None:
    """Refuse a provider that makes no images.

    Raises:
        UsageError: saying what is to be done instead.
    """
    if not capabilities_of(provider).rents:
        raise UsageError(
            f"provider {provider}: its machines stay, and keep what `setup` made and images of containers",
            "The first run puts it there, and later ones find it: no image is needed.",
        )
    if not capabilities_of(provider).bakes:
        raise UsageError(
            f"provider {provider} makes no images of its machines", "Name one that does: aws or lab."
        )


def check_roles(recipe: Recipe) -> None:
    """Refuse Ansible's roles where there is no machine for them, or no Ansible.

    Raises:
        UsageError: naming the key.
        MissingPartError: Ansible is not installed.
    """
    for experiment in recipe.experiments.values():
        if experiment.roles is None:
            continue
        with _named(recipe, "experiments", experiment.name, "roles"):
            if capabilities_of(named_places(recipe)[0]).is_here:
                raise UsageError(
                    f"Ansible makes machines ready over SSH, and provider {recipe.provider} is this one",
                    "Write `setup`, or put it into the inventory of provider hosts.",
                )
            from trainmaster.control.checks.ansible import find_program

            find_program("ansible-playbook")


def _check_places(recipe: Recipe) -> None:
    own = {("experiments", name, "provider"): each.provider for name, each in recipe.experiments.items()}
    own = {key: places for key, places in own.items() if places}
    for key, places in [(("provider",), (recipe.provider,)), *own.items()]:
        with _named(recipe, *key):
            for place in places:
                if not capabilities_of(place).is_here:
                    from trainmaster.providers.plugins import PROVIDERS

                    PROVIDERS.check(place)
    named = named_places(recipe)
    here = next((place for place in named if capabilities_of(place).is_here), None)
    if own and here and len(named) > 1:
        with _named(recipe, *next(iter(own))):
            raise UsageError(
                f"provider {here} is this machine, and a run is there as a whole or not at all",
                "Name other places for all experiments (`hosts` may list this machine, too), or choose one "
                "for the run with --provider.",
            )


def _check_containers(recipe: Recipe) -> None:
    for name, experiment in recipe.experiments.items():
        if experiment.container is None:
            continue
        places = experiment.provider or named_places(recipe)
        refused = [why for place in places if (why := capabilities_of(place).no_containers)]
        if len(refused) == len(places):  # else those places are passed over when one is chosen
            with _named(recipe, "experiments", name, "container"):
                said = f"provider {' or '.join(places)} starts no containers"
                raise UsageError(said, f"{refused[0][0].upper()}{refused[0][1:]}.")


def check_names(recipe: Recipe) -> None:
    """Refuse an unknown provider, framework, sampler, pruner or option of a search.

    Looks at nothing but the recipe and the names that are installed; loads no library.

    Raises:
        UsageError: naming the key, with the names that there are.
        MissingPartError: a plug-in has the name, but cannot be loaded.
    """
    _check_places(recipe)
    _check_containers(recipe)
    for number, subscription in enumerate(recipe.notify):
        from trainmaster.control.notes.notifier import NOTIFIERS

        with _named(recipe, "notify", str(number), "by"):
            NOTIFIERS.check(subscription.notifier)
    for experiment in recipe.experiments.values():
        where = ("experiments", experiment.name)
        with _named(recipe, *where, "framework"):
            get_launcher(experiment.launcher)
        if (search := experiment.search) is not None:
            from trainmaster.sweeps import pruner_class, sampler_class, wrong_options

            with _named(recipe, *where, "search", "sampler"):
                sampler_class(search.sampler)
            with _named(recipe, *where, "search", "pruner"):
                pruner_class(search.pruner or "none")
            for option, error in wrong_options(search).items():
                options = ("options", option) if option in search.options else (option,)
                raise recipe.refused([((*where, "search", *options), error)])


@contextmanager
def _named(recipe: Recipe, *key: str) -> Iterator[None]:
    """Name the key at fault, and its place in the recipe unless the fault is this machine's."""
    try:
        yield
    except MissingPartError as error:
        raise MissingPartError(f"{'.'.join(key)}: {error.args[0]}", error.hint) from error
    except UsageError as error:
        raise recipe.refused([(key, error)]) from error


def check_notify(recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Refuse what a notifier cannot do with its ``to``; sends nothing.

    Raises:
        UsageError: naming the key.
        MissingPartError: a plug-in has the name, but cannot be loaded.
    """
    for number, subscription in enumerate(recipe.notify):
        from trainmaster.control.notes.notifier import make_notifier

        with _named(recipe, "notify", str(number)):
            make_notifier(subscription.notifier, subscription.to, environ)


def check_directories(recipe: Recipe) -> None:
    """Refuse ``data: {dir: ...}`` and ``roles`` that are not there or not right: tasks would find out late.

    Raises:
        UsageError: naming the key and the path.
    """
    for experiment, key, source in _sources(recipe):
        path = recipe.directory / Path(source.directory or "").expanduser()
        if source.directory is not None and not path.exists():
            with _named(recipe, "experiments", experiment.name, "data", key, "dir"):
                hint = "A relative path starts at the recipe's folder."
                raise UsageError(f"there is no {path.resolve()}", hint)
    code = recipe.directory / Path(recipe.code).expanduser()
    for experiment in recipe.experiments.values():
        if experiment.roles is None:
            continue
        from trainmaster.control.checks.role_files import require_role, require_variables

        for entry in experiment.roles.entries:
            if code.is_dir() and not (code / entry).exists():
                with _named(recipe, "experiments", experiment.name, "roles"):
                    hint = "A relative path starts at the top of the code."
                    raise UsageError(f"there is no {entry} in {code.resolve()}", hint)
            if code.is_dir() and not is_requirements(entry):
                with _named(recipe, "experiments", experiment.name):
                    require_role(code / entry, entry)
                    for group, entries in experiment.roles.groups.items():
                        if entry in entries:
                            require_variables(
                                code / entry, entry, experiment.roles.variables_of(group, entry)
                            )


def check_sent(recipe: Recipe, snapshot: Path) -> None:
    """Refuse directories with data that do not go to a server with the code; absolute ones are the server's.

    Args:
        recipe: in the directory of the user.
        snapshot: of the code that is sent.

    Raises:
        UsageError: naming the key, and the path as the user wrote it.
    """
    for experiment, key, source in _sources(recipe):
        path = source.directory
        if path is None or Path(path).is_absolute():
            continue
        inside = Path(os.path.normpath(path))
        leaves = recipe.code != "." or inside.parts[:1] in (("..",), ("~",))
        if not leaves and (snapshot / inside).exists():
            continue
        with _named(recipe, "experiments", experiment.name, "data", key, "dir"):
            if not (recipe.directory / Path(path).expanduser()).exists():
                raise UsageError(f"there is no {path}", "A relative path starts at the recipe's folder.")
            raise UsageError(
                f"{path} is {'outside the code' if leaves else 'left out of the code'}, and is not sent",
                f"Push it as a volume, `trainmaster volume push {path} NAME`, and write `volume: NAME`.",
            )


def check_urls(recipe: Recipe) -> None:
    """Refuse URLs with placeholders that have no value.

    Raises:
        UsageError: naming the key.
    """
    for experiment, key, source in _sources(recipe):
        with _named(recipe, "experiments", experiment.name, "data", key, "url"):
            source.url_with(dict.fromkeys([*experiment.env, *experiment.secrets], ""))


def recipe_notes(recipe: Recipe) -> list[str]:
    """What the user is to know of a recipe that is right: data that are not safe, and GPUs that stay idle."""
    return [*_data_notes(recipe), *_idle_gpus(recipe)]


def _idle_gpus(recipe: Recipe) -> Iterator[str]:
    """GPUs of machines that no worker is given: fewer workers than they are shared out among."""
    for experiment in recipe.experiments.values():
        distributed, gpus = experiment.distributed, experiment.hardware.gpu_count
        if distributed is None or not gpus or not isinstance(distributed.workers, int):
            continue
        per_node = workers_per_node(experiment)
        there = min(per_node, distributed.workers)
        used = there * (gpus // per_node)
        if used < gpus:
            ways = [f"`workers: {gpus}`"] * (distributed.per_node is None)
            ways.append(f"a `per_node` that divides {gpus}" if gpus % there else f"`per_node: {there}`")
            many = counted(there, "worker")
            yield (
                f"{experiment.name}: {used} of the {gpus} GPUs of a machine are used, by {many}; "
                f"set {' or '.join(ways)}"
            )


def _data_notes(recipe: Recipe) -> list[str]:
    """Of data that anybody on the way could change, or that give a secret away."""
    urls = [(f"{each.name}: data.{key}.url", source) for each, key, source in _sources(recipe) if source.url]
    signed = [
        f"{where} holds a signature or a key, which is written down with the run; "
        "write ${NAME} instead, and the name under `secrets`"
        for where, source in urls
        if has_secret(source.url or "")
    ]
    signed += [
        f"notify.{number}.to holds a key, which is written down with the run; write $NAME and export it"
        for number, subscription in enumerate(recipe.notify)
        if has_secret(subscription.to)
    ]
    return signed + [
        f"{where}: whoever is on the way can change what comes by http://; add `sha256`, or use https://"
        for where, source in urls
        if (source.url or "").lower().startswith("http://") and not source.sha256
    ]


def check_volumes(recipe: Recipe, store_url: str) -> None:
    """Refuse volumes that are not there, naming the key.

    Raises:
        UsageError: there is no such volume.
    """
    for experiment, key, source in _sources(recipe):
        if source.volume is not None:
            from trainmaster.control.attempt.data_sources import require_volume, volume_url

            with _named(recipe, "experiments", experiment.name, "data", key, "volume"):
                require_volume(source.volume, volume_url(source.volume, store_url))


def check_data_parts(recipe: Recipe) -> None:
    """Refuse data that need what is not installed here, where they are brought from.

    Raises:
        MissingPartError: naming the key.
    """
    for experiment, key, source in _sources(recipe):
        from trainmaster.control.attempt.data_sources import parts_of  # a run without data loads none of it

        for part in parts_of(source):
            if part.missing:
                with _named(recipe, "experiments", experiment.name, "data", key):
                    raise MissingPartError(
                        f"it needs {' and '.join(part.missing)}, not installed on this machine",
                        f"pip install '{part.package}', wherever the tasks run.",
                    )


def why_bound_by_data(recipe: Recipe, snapshot: Path | None = None) -> str:
    """Which data of a recipe no other machine than this one can bring, and why; empty if there are none.

    Args:
        recipe: of a run.
        snapshot: of its code; None: it is not made yet.
    """
    for experiment, key, source in _sources(recipe):
        if why := _why_bound(recipe, source, snapshot):
            return f"experiments.{experiment.name}.data.{key}.{why}"
    return ""


def _why_bound(recipe: Recipe, source: DataSource, snapshot: Path | None) -> str:
    if source.directory is not None and not _is_code(recipe, source.directory, snapshot):
        return (
            f"dir: {source.directory} is on this machine only, as it is no part of the code: "
            "push it as a volume, or have it in the recipe's folder with `code: .`"
        )
    for kind, text in (("url", source.url), ("volume", source.volume), ("model", source.model_uri)):
        scheme, mark, rest = (text or "").partition("://")
        is_path = kind == "volume" and scheme.startswith(("/", "."))
        if is_path or (mark and (scheme.lower() in ("file", "memory") or _is_this_machine(rest))):
            return f"{kind}: {text} is on this machine only: put it on an object store"
    return ""


def _is_code(recipe: Recipe, directory: str, snapshot: Path | None) -> bool:
    """Whether a directory with data goes where the code does, as far as that is known."""
    inside = Path(os.path.normpath(directory))
    if recipe.code != "." or inside.is_absolute() or inside.parts[:1] in (("..",), ("~",)):
        return False
    if snapshot is None:
        return True
    place = (snapshot / inside).resolve()
    return place.is_dir() and place.is_relative_to(snapshot.resolve())


def _little_shared_memory(name: str, wanted_bytes: float) -> list[str]:
    """A note if this machine has less of it than an experiment asks for."""
    from trainmaster.executors.containers.command_line import shared_bytes

    if wanted_bytes <= (found := shared_bytes()):
        return []
    return [
        f"{name}: hardware.shm_size: {wanted_bytes / 1e9:.1f} GB, /dev/shm of this machine has "
        f"{found / 1e9:.1f} GB; `mount -o remount,size={wanted_bytes} /dev/shm` as "
        "root makes it larger, or `container` with docker or podman"
    ]


def _is_this_machine(rest: str) -> bool:
    """Whether what comes after ``SCHEME://`` names the machine that asks, whichever that is."""
    from trainmaster.spec.addresses import is_loopback  # most data are in files

    return is_loopback(re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")[2])


def check_machine(recipe: Recipe, machine: NodeCapacity) -> list[str]:
    """Does one machine have what the experiments ask for?

    Args:
        recipe: of any provider; what is not for ``local`` is not for this machine.
        machine: what it has.

    Returns:
        Notes for the user: wishes that mean nothing here, and what was capped.

    Raises:
        UsageError: a demand that this machine can never meet.
    """
    if not capabilities_of(recipe.provider).is_here:
        return []
    has_own_memory = False
    if any(experiment.container is not None for experiment in recipe.experiments.values()):
        from trainmaster.executors.containers.engines import APART, find_engine

        has_own_memory = find_engine(os.environ).kind in APART
    notes = []
    mistakes: list[tuple[tuple[str, ...], TrainmasterError]] = []
    cores, memory_bytes = machine.cores, machine.memory_bytes
    for experiment in recipe.experiments.values():
        name, hardware = experiment.name, experiment.hardware
        members = member_names(experiment)
        gpus = [gpus_of(experiment, role, is_here=True) for role, _ in members]
        wishes = [key for key in ("instance", "gpu", "spot", "region") if getattr(hardware, key)]
        notes += [f"{name}: hardware.{key} is only a wish on this machine" for key in wishes]
        if hardware.shm_bytes and (experiment.container is None or not has_own_memory):
            notes += _little_shared_memory(name, hardware.shm_bytes)
        each = f" for each of {len(members)} members" if len(members) > 1 else ""
        where = ("experiments", name, "hardware")
        wanted = {}
        if hardware.cpus and slots_of(experiment) > cores:
            wanted["cpus"] = f"{slots_per_member(experiment)}{each}, this machine has {cores}"
        if hardware.memory_bytes and hardware.memory_bytes > memory_bytes:
            said = recipe.written((*where, "memory")) or f"{hardware.memory_bytes / 1e9:.1f} GB"
            unit, unit_bytes = ("GiB", 1 << 30) if "i" in said else ("GB", 10**9)
            wanted["memory"] = f"{said}, this machine has {memory_bytes / unit_bytes:.1f} {unit}"
        asked = max(each.hardware.gpus or 0 for each in experiment.members())
        if sum(gpus) > len(machine.gpus):
            wanted["gpus"] = f"{max(gpus)}{each}, this machine has {len(machine.gpus)}"
        elif asked > len(machine.gpus):  # `hardware` is of a machine, however few workers share it
            wanted["gpus"] = f"{asked}, this machine has {len(machine.gpus)}"
        hint = "Ask for less, or use another provider."
        mistakes += [((*where, key), UsageError(text, hint)) for key, text in wanted.items()]
        most = tasks_here(experiment, Capacity(cores, machine.gpus))
        could = min(tasks_here(experiment, Capacity(sys.maxsize)), experiment.side_by_side(recipe.seed))
        if experiment.workers is not None and could > most:
            notes.append(
                f"{name}: workers: {experiment.workers} is more than this machine has slots and GPUs for; "
                f"capped: {counted(most, 'task')} at a time"
            )
    if mistakes:
        raise recipe.refused(mistakes)
    return notes


def _sources(recipe: Recipe) -> Iterator[tuple[Experiment, str, DataSource]]:
    """Everything under ``data``, with its name there."""
    for experiment in recipe.experiments.values():
        for name, source in experiment.data.items():
            yield experiment, name, source


def _missing(recipe: Recipe) -> Iterator[str]:
    for experiment in recipe.experiments.values():
        where = f"experiments.{experiment.name}"
        if experiment.search is not None:
            from trainmaster.sweeps import make_pruner, make_sampler

            try:
                make_sampler(experiment, 0)
                make_pruner(experiment.search)
            except TrainmasterError as error:
                yield f"{where}.search: {error}"
        if experiment.distributed is not None and experiment.distributed.is_flexible:
            workers = f"{where}.distributed.workers: {experiment.distributed.workers}"
            yield f"{workers}: no quote has chosen a number; `trainmaster run` does"
