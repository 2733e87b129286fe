"""What is wrong between experiments. Works on nodes, so that it is found beside other mistakes."""

from __future__ import annotations

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Path, Problems
from trainmaster.spec.serve import has_command


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
        if not has_command(experiment) and experiment.entries and not command_is_optional:
            message = "no `command`; write the script to run"
            problems.add(experiments.keys[name], (*path, "command"), message)
        for node, where in _references(experiment, path):
            if node.text in edges:
                if "serve" in experiments.entries[node.text].entries:
                    message = f"'{node.text}' is a service, which does not end; leave it out"
                    problems.add(node, where, message)
                edges[name].setdefault(node.text, (node, where))
            else:
                right = problems.suggest(node.text, (other for other in names if other != name))
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
