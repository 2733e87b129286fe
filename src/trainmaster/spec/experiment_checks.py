"""What is wrong with an experiment although every key by itself is right.

What is wrong between experiments. Works on nodes, so that it is found beside other mistakes.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.frameworks import LAUNCHERS
from trainmaster.spec.node import Kind, YamlNode, nearest, place
from trainmaster.spec.reading import Path, Problems, pattern, takes
from trainmaster.spec.search import Search
from trainmaster.spec.serve import has_command
from trainmaster.spec.task_space import MAX_SIZE, MAX_TASKS
from trainmaster.spec.template import Placeholder, placeholders


def check_workflow(recipe: YamlNode, problems: Problems, *, command_is_optional: bool) -> None:
    """Note unknown experiments in ``after`` and ``from``, cycles, and missing commands."""
    experiments = recipe.entries.get("experiments")
    if experiments is None or experiments.kind is not Kind.MAPPING:
        return
    names = list(experiments.entries)
    edges: dict[str, dict[str, tuple[YamlNode, Path]]] = {name: {} for name in names}
    for name, experiment in experiments.entries.items():
        if experiment.kind is not Kind.MAPPING:
            continue
        path = ("experiments", name)
        is_told = not problems.misspelt.isdisjoint({(*path, "command"), (*path, "serve", "command")})
        has_one = command_is_optional or is_told or has_command(experiment)
        if experiment.entries and not has_one:
            message = "no `command`; write the script to run"
            problems.add(experiments.keys[name], (*path, "command"), message)
        for node, where in _references(experiment, path):
            if node.text in edges:
                if "serve" in experiments.entries[node.text].entries:
                    message = f"'{node.text}' is a service, which does not end; leave it out"
                    problems.add(node, where, message)
                edges[name].setdefault(node.text, (node, where))
            else:
                others = [other for other in names if other != name]
                right = problems.suggest(node.text, others) if others else "there is no other experiment"
                problems.add(node, where, f"unknown experiment '{node.text}'; {right}")
    if cycle := _cycle({name: list(targets) for name, targets in edges.items()}):
        node, where = edges[cycle[0]][cycle[1]]
        if len(cycle) == 2:
            problems.add(node, where, f"'{cycle[0]}' waits for itself; leave it out")
        else:
            problems.add(node, where, f"a cycle: {' -> '.join(cycle)}; leave out one of these")


def _references(experiment: YamlNode, path: Path) -> list[tuple[YamlNode, Path]]:
    found: list[tuple[YamlNode, Path]] = []
    after = experiment.entries.get("after")
    if after is not None and after.kind is Kind.LIST:
        found += [(item, (*path, "after", str(at))) for at, item in enumerate(after.items)]
    elif after is not None and after.kind is Kind.SCALAR:
        found.append((after, (*path, "after")))
    data = experiment.entries.get("data")
    for name, source in data.entries.items() if data is not None else ():
        if "from" in source.entries:
            found.append((source.entries["from"], (*path, "data", name, "from")))
    return [(node, where) for node, where in found if node.kind is Kind.SCALAR and node.text]


def _cycle(graph: dict[str, list[str]]) -> list[str]:
    """The names along a cycle, the first repeated at the end; empty if there is none."""
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # graphlib lists each before what waits for it; people read it the other way.
        found: list[str] = list(reversed(error.args[1]))
        places = {name: at for at, name in enumerate(graph)}
        start = min(range(len(found) - 1), key=lambda at: places[found[at]])
        return [*found[start:-1], *found[: start + 1]]
    return []


BUILTIN_NAMES: Final = ("batch_per_worker", "batch_global", "steps", "epochs", "port")

_BRACES = re.compile(r"\{\{")


def read_framework(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read a framework or a launcher's name; refuse a misspelt one and an image."""
    right = f"write {', '.join(sorted(set(LAUNCHERS.values())))}, pytorch or the name of a launcher"
    if node.kind is Kind.SCALAR and re.search(r"[/:]", node.text):
        raise problems.refuse(node, path, f"{node.describe()}; an image goes beside it, as `container:`")
    found = pattern(r"[A-Za-z][A-Za-z0-9_-]*", right)(node, path, problems)
    if found.lower() not in LAUNCHERS and (near := nearest(found, list(LAUNCHERS))):
        raise problems.refuse(node, path, f"unknown framework '{found}'; did you mean '{near}'?")
    return found


takes(read_framework, text=r"^[A-Za-z][A-Za-z0-9_-]*$")


def lift_samples(node: YamlNode, path: Path, problems: Problems) -> YamlNode:
    """Move ``samples`` from inside ``parameters`` to beside it."""
    parameters = node.entries.get("parameters")
    if parameters is None or parameters.kind is not Kind.MAPPING or "samples" not in parameters.entries:
        return node
    inner = parameters.entries["samples"]
    outer = node.entries.get("samples")
    if outer is not None and outer.text != inner.text:
        message = f"{inner.describe()}, but {outer.describe()} beside `parameters`; give `samples` once"
        problems.add(inner, (*path, "parameters", "samples"), message)
    return node.hoisted("parameters", "samples", path)


def check_experiment(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    """Note what does not fit together. ``values`` has the keys that could be read, by field name."""
    _check_names(node, path, problems)
    check_search(values, node, path, problems)
    _check_requirement(values, node, path, problems)
    _check_tasks(values, node, path, problems)
    _check_batch(values, node, path, problems)
    _check_template(values, node, path, problems)
    _check_roles(values, node, path, problems)
    is_mpi = LAUNCHERS.get(str(values.get("framework") or "").lower()) == "mpi"
    if is_mpi and "slurm" in values.get("aliases", ()):
        message = "slurm with mpi: Open MPI would look for a Slurm; leave it out"
        problems.add(node.entries["aliases"], (*path, "aliases"), message)
    if {"until", "target"} <= set(node.entries):
        message = "`until` and `target` both end the training; leave one of them out"
        problems.add(node.entries["target"], (*path, "target"), message)
    if values.get("adapt"):
        _check_adapt(node, path, problems)
    for name in values.get("secrets", ()):
        if name in values.get("env", {}):
            where = node.entries["env"].keys[name]
            problems.add(where, (*path, "env", name), f"'{name}' is in `secrets` too; leave it out here")


def _check_adapt(node: YamlNode, path: Path, problems: Problems) -> None:
    """What is gained by a change is known only of what has steps and an end."""
    if "serve" in node.entries:
        message = "`adapt` is for what trains: a service has its own way with slow replicas; leave it out"
        problems.add(node.entries["adapt"], (*path, "adapt"), message)
    elif not {"steps", "epochs"} & set(node.entries):
        message = "whether a change pays is known only of what has an end; write `steps` or `epochs`, too"
        problems.add(node.entries["adapt"], (*path, "adapt"), message)


def _check_names(node: YamlNode, path: Path, problems: Problems) -> None:
    builtins = _builtins(node)
    for section in ("parameters", "data"):
        parent = node.entries.get(section)
        upper: dict[str, str] = {}
        for name, key in parent.keys.items() if parent is not None else ():
            where = (*path, section, name)
            if name.upper() in upper:
                variable = "TRAINMASTER_" + ("PARAM_" if section == "parameters" else "DATA_") + name.upper()
                message = (
                    f"'{name}' and '{upper[name.upper()]}' would share the variable {variable}; rename one"
                )
                problems.add(key, where, message)
            upper[name.upper()] = name
            if section == "parameters" and name in builtins:
                problems.add(key, where, f"the name '{name}' is taken by a key of the experiment; rename one")


def _check_requirement(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    """Find out which values are better, and remember the line."""
    wanted, search = values.get("require"), values.get("search")
    if wanted is None:
        return
    of_search = search.goal if search is not None and search.metric == wanted.metric else None
    if wanted.goal and of_search and wanted.goal != of_search:
        message = f"goal: {wanted.goal}, but the search has goal: {of_search} of that metric; leave it out"
        problems.add(node.entries["require"].entries["goal"], (*path, "require", "goal"), message)
    goal = wanted.goal or of_search
    if goal is None and (wanted.at_least is None) != (wanted.at_most is None):
        goal = "min" if wanted.at_least is None else "max"
    if goal is None:
        message = f"whether more {wanted.metric} is better is not known; add goal: max or goal: min"
        problems.add(node.entries["require"], (*path, "require"), message)
    key = node.keys["require"]
    line = 0 if key.via else key.line
    values["require"] = wanted.model_copy(update={"goal": goal, "line": line})


def _builtins(node: YamlNode) -> list[str]:
    """Names of the built-in values that a recipe's keys give."""
    given = {key for key in node.entries if not node.entries[key].is_null}
    names = ["batch_per_worker", "batch_global"] if "batch" in given else []
    if "steps" in given or {"batch", "epochs", "examples"} <= given:
        names.append("steps")
    return [*names, *(name for name, key in (("epochs", "epochs"), ("port", "serve")) if key in given)]


def _check_tasks(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    parameters = values.get("parameters")
    if not parameters:
        return
    parent = node.entries["parameters"]
    combinations = math.prod(
        parameter.count for parameter in parameters.values() if not parameter.is_continuous
    )
    ranked = "search" in node.entries or "require" in node.entries
    if "promote" in values and not ranked and (values.get("samples") or combinations) != 1:
        message = "`promote` of many tasks without `search`; it says by which metric a model is the best"
        problems.add(node.entries["promote"], (*path, "promote"), message)
    if "samples" not in node.entries and not is_population_based(values):
        for name, parameter in parameters.items():
            if parameter.is_continuous:
                right = "add `samples: n` to draw n values, or `step` to list them"
                problems.add(
                    parent.entries[name],
                    (*path, "parameters", name),
                    f"a continuous range without samples; {right}",
                )
        if combinations > MAX_TASKS:
            found = f"{combinations:,}" if combinations < 10**18 else "more than 10^18"
            message = f"a product of {found} tasks; add `samples: n`, at most {MAX_TASKS:,}"
            problems.add(parent, (*path, "parameters"), message)
    elif combinations > MAX_SIZE:
        message = (
            "a product of more than 10^18 combinations; leave out a `step` to draw from the continuous range"
        )
        problems.add(parent, (*path, "parameters"), message)


def _check_batch(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    batch, distributed = values.get("batch"), values.get("distributed")
    if distributed is None:
        return
    if distributed.is_flexible:
        missing = [] if "batch" in node.entries else ["`batch`"]
        if not {"steps", "epochs", "examples", "until", "target"} & set(node.entries):
            missing.append("a length (`steps`, or `epochs` and `examples`)")
        if missing:
            where = node.entries["distributed"]
            where = where.entries.get("workers", where)
            found = f"workers: {distributed.workers} without {' and '.join(missing)}"
            right = "add it, else another number of workers would silently change what is trained"
            problems.add(where, (*path, "distributed", "workers"), f"{found}; {right}")
    elif batch is not None and batch.total is not None and batch.total % distributed.workers:
        where = node.entries["batch"].entries["global"]
        found = f"{batch.total} cannot be shared evenly by {distributed.workers} workers"
        right = f"write a multiple of {distributed.workers}, or per_worker"
        problems.add(where, (*path, "batch", "global"), f"{found}; {right}")


def _check_roles(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    roles, distributed = values.get("roles"), values.get("distributed")
    has_servers = distributed is not None and distributed.strategy.has_servers
    is_worker = distributed is not None and has_servers and distributed.chief is not None
    framework = (values.get("framework") or "tensorflow").lower()
    if is_worker and LAUNCHERS.get(framework, framework) != "tensorflow":
        message = f"framework {framework} has no chief; leave it out"
        problems.add(node.entries["distributed"].entries["chief"], (*path, "distributed", "chief"), message)
    for name in roles.secrets if roles is not None else ():
        if name not in values.get("secrets", ()):
            message = f"a variable stands for {name}, which is not in `secrets`; name it there, too"
            problems.add(node.entries["roles"], (*path, "roles"), message)
    missing = ("chief",) if is_worker else () if has_servers else ("chief", "ps")
    for name in missing if roles is not None else ():
        if name in node.entries["roles"].entries:
            where = node.entries["roles"].keys[name]
            message = f"no member of this experiment is a {name}; write all, or worker"
            problems.add(where, (*path, "roles", name), message)


def _check_template(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    parent = node.entries.get("parameters")
    # In order, and looked up in an instant.
    known = dict.fromkeys([*(parent.entries if parent is not None else ()), *_builtins(node)])
    for found in _placeholders_of(values, "command", node, path):
        placeholder = found.placeholder
        if placeholder.refusal:
            problems.add(found.node, found.path, placeholder.refusal, place=_place(found))
        elif placeholder.name not in known:
            right = problems.suggest(placeholder.name, known)
            if placeholder.name in BUILTIN_NAMES:
                of = {"batch_per_worker": "batch", "batch_global": "batch", "port": "serve"}
                needs = f"`{of.get(placeholder.name, placeholder.name)}`"
                right = f"it is known where the experiment has the key {needs}"
            message = f"undefined {{{{{placeholder.name}}}}}; {right}"
            problems.add(found.node, found.path, message, place=_place(found))
    for found in _placeholders_of(values, "setup", node, path):
        name = found.placeholder.name
        if name in known:
            message = f"{{{{{name}}}}} in `setup`; it runs once per node, before any task: leave it out"
            problems.add(found.node, found.path, message, place=_place(found))


@dataclass(frozen=True, slots=True)
class _Found:
    """A placeholder, where it starts in a scalar, and the scalar's node and path."""

    placeholder: Placeholder
    start: int
    node: YamlNode
    path: Path


def _placeholders_of(values: dict[str, Any], key: str, node: YamlNode, path: Path) -> Iterator[_Found]:
    """Each placeholder of a script, in the text or the list's item that it stands in."""
    if key not in values or key not in node.entries:
        return
    parent = node.entries[key]
    lines = parent.items if parent.kind is Kind.LIST else [parent]
    index = start = 0
    for placeholder in placeholders(values[key]):
        while placeholder.start > start + len(lines[index].text):
            start += len(lines[index].text) + 1
            index += 1
        where = (*path, key, str(index)) if parent.kind is Kind.LIST else (*path, key)
        yield _Found(placeholder, placeholder.start - start, lines[index], where)


@lru_cache(maxsize=8)
def _braces(text: str) -> tuple[int, ...]:
    return tuple(match.start() for match in _BRACES.finditer(text))


def _place(found: _Found) -> tuple[int, int] | None:
    """Where a placeholder stands in the file: the n-th ``{{`` of the value is the n-th of its source.

    Folding, quoting and indentation change offsets, but hardly ever the order of the braces; where they do
    (escapes that write braces), the beginning of the value must do.
    """
    line = found.node
    in_value, in_source = _braces(line.text), _braces(line.source)
    at = bisect_left(in_value, found.start)
    if len(in_value) != len(in_source) or in_value[at : at + 1] != (found.start,):
        return None
    row, column = place(line.source, in_source[at])
    return line.line + row - 1, column + (line.column - 1 if row == 1 else 0)


#: The sampler whose tasks are generations of a population.
POPULATION_BASED = "pbt"


def is_population_based(values: dict[str, Any]) -> bool:
    """True if the number of tasks follows from a population and its generations."""
    search: Search | None = values.get("search")
    return search is not None and search.sampler == POPULATION_BASED


def check_search(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    """Note what does not fit together; for population-based training, work out ``samples``."""
    search: Search | None = values.get("search")
    if search is None:
        return
    parent, where = node.entries["search"], (*path, "search")
    if "parameters" not in node.entries:
        problems.add(parent, where, "a search without `parameters`; name what to look for")
    elif is_population_based(values):
        if search.goes_on is not None:
            message = (
                "`from` with sampler pbt, whose members begin with checkpoints of their own run; leave it out"
            )
            problems.add(parent.entries["from"], (*where, "from"), message)
        _check_population(values, search, node, path, problems)
        return
    elif search.chooses_later and "samples" not in node.entries:
        message = f"sampler {search.sampler} without `samples`; write how many tasks to try"
        problems.add(parent, where, message)
    if search.generations is not None:
        message = f"sampler {search.sampler} has no generations; leave it out, or write sampler: pbt"
        problems.add(parent.entries["generations"], (*where, "generations"), message)


def _check_population(
    values: dict[str, Any], search: Search, node: YamlNode, path: Path, problems: Problems
) -> None:
    """``samples`` = population x generations: any one of the three may be left out."""
    parent, where = node.entries["search"], (*path, "search")
    if search.pruner not in (None, "none"):
        message = f"pruner {search.pruner} beside sampler pbt, which ends bad members itself; leave it out"
        problems.add(parent.entries["pruner"], (*where, "pruner"), message)
    samples, generations = values.get("samples"), search.generations
    population = search.population or values.get("workers")
    if population is None and samples and generations and samples % generations == 0:
        population = samples // generations
    if population is None:
        message = "sampler pbt without `population`; write how many members train side by side"
        problems.add(parent, where, message)
        return
    if generations is None:
        if samples is None:
            message = "sampler pbt without `generations`; write how often the population trains"
            problems.add(parent, where, message)
            return
        generations = max(1, samples // population)
    if samples is not None and samples != population * generations:
        message = (
            f"{samples} samples, but {population} members x {generations} generations; leave `samples` out"
        )
        problems.add(node.entries["samples"], (*path, "samples"), message)
        return
    values["samples"] = population * generations
    values["search"] = search.model_copy(update={"population": population, "generations": generations})
