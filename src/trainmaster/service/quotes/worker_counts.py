"""How many workers a recipe allows, and the recipe with some of them."""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.spec import Experiment, Recipe


def allowed_workers(experiment: Experiment) -> list[int]:
    """Numbers of workers that the recipe allows and that share the batch evenly, the fewest first."""
    from trainmaster.advisor.market.workload import Workload

    return sorted(Workload.of(experiment, 0).lengths)


def with_workers(recipe: Recipe, counts: Mapping[str, int]) -> Recipe:
    """The recipe with these numbers of workers.

    Args:
        recipe: any.
        counts: of experiments with ``distributed``, by name.
    """
    experiments = dict(recipe.experiments)
    for name, count in counts.items():
        shaped = experiments[name].distributed
        assert shaped is not None
        fixed = shaped.model_copy(update={"workers": count})
        experiments[name] = experiments[name].model_copy(update={"distributed": fixed})
    return recipe.model_copy(update={"experiments": experiments})


def with_fewest(recipe: Recipe) -> Recipe:
    """The recipe with the fewest workers where it leaves their number open; itself if it does not."""
    fewest = {
        name: allowed_workers(experiment)[0]
        for name, experiment in recipe.experiments.items()
        if experiment.distributed and experiment.distributed.is_flexible
    }
    return with_workers(recipe, fewest) if fewest else recipe
