"""`Preparation`: what an experiment's `setup` and `container` take on a machine, and images that save it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmaster.control.task.contents import Preparations, content_of
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.advisor.market.workload import Workload
    from trainmaster.advisor.quote.quote import Rented
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


@dataclass(frozen=True, slots=True)
class Preparation:
    """Of one experiment.

    Attributes:
        name: of the experiment.
        seconds: that it took last on a machine that had nothing of it; 0: nothing, or never seen.
        images: ids of images with all of it, by provider and region.
    """

    name: str
    seconds: float
    images: Mapping[tuple[str, str], str]

    def counted(self, workload: Workload) -> Workload:
        """The experiment as quotes see it, with that."""
        return replace(workload, preparation_s=self.seconds, prepared_in=frozenset(self.images))

    def on(self, provider: str, region: str) -> float:
        """What it takes on a new machine there, in seconds."""
        is_saved = (provider, region) in self.images or not capabilities_of(provider).rents
        return 0.0 if is_saved else self.seconds

    def words(self, rented: Rented) -> str:
        """What of it is in a quote; empty if there is nothing to say."""
        if not self.seconds or not capabilities_of(rented.provider).rents:
            return ""
        took = format_duration(self.seconds)
        if image := self.images.get((rented.provider, rented.region)):
            return f"{self.name}: machines start from {image}, without the {took} of setup and container"
        return f"{self.name}: counts {took} for setup and container on its machines, as seen last"


def preparations_of(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str], code: Path | None = None
) -> dict[str, Preparation]:
    """Those of a recipe's experiments.

    The provider is asked for images where they would save something; one that cannot be asked has none, and
    a run that makes one starts from none.

    Args:
        service: of the home.
        recipe: to be quoted.
        environ: of the caller: credentials.
        code: of a run; the recipe's as it is now without.
    """
    from trainmaster.service.images import HomeImages

    seen, code = Preparations.of(service.home.cache), code or recipe.directory / recipe.code
    seconds = {name: seen.seconds(content_of([each], code)) for name, each in recipe.experiments.items()}
    images = []
    if any(seconds.values()) and capabilities_of(recipe.provider).bakes and not recipe.bake:
        with suppress(TrainmasterError):
            images = [
                one for one in HomeImages(service.home, environ).listed(recipe.provider) if one["is_ready"]
            ]
    found = {}
    for name, each in recipe.experiments.items():
        wanted = set(content_of([each], code, service.team or ""))
        fitting = {
            (one["provider"], one["region"]): one["id"]
            for one in reversed(images)  # the newest counts
            if wanted.issubset(one["content"])
        }
        found[name] = Preparation(name, seconds[name], fitting)
    return found
