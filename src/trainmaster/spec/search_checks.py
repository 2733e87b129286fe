"""What is wrong with a search although every key by itself is right."""

from __future__ import annotations

from typing import Any

from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import Path, Problems
from trainmaster.spec.search import Search

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
