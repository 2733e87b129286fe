"""Images that are made of machines: the recipe of a run that makes one, which there are, and their end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.checks.preflight import require_baker
from trainmaster.providers.base import BakedImage, Baker
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.plugins import PROVIDERS, get_provider
from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.experiment import Experiment
from trainmaster.spec.reading import keys_of

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome

#: What says what is on a machine, and which one it is; everything else is of the work that is done there.
_KEPT: Final = frozenset({"setup", "container", "env", "secrets", "hardware"})
_DROPPED: Final = ("data", "objective", "on", "concurrency", "notify", "sinks")


def image_recipe(
    path: Path, overrides: list[str], provider: str | None, experiments: list[str] | None = None
) -> Recipe:
    """The recipe of a run that puts on machines what a recipe's experiments need, and makes images of them.

    Args:
        path: of the recipe.
        overrides: as of `run --set`.
        provider: instead of the recipe's.
        experiments: only these; None: all.

    Raises:
        RecipeError: the recipe is wrong.
        NotFoundError: it has no such experiment.
    """
    recipe = read_recipe(path, overrides=overrides, provider=provider)
    require_baker(recipe.provider)
    wanted = list(recipe.experiments) if experiments is None else experiments
    for name in wanted:
        if name not in recipe.experiments:
            raise NotFoundError(
                f"there is no experiment {name!r} in {recipe.file}",
                f"It has {', '.join(recipe.experiments)}.",
            )
    changes = [*overrides, "bake=true", f"name={recipe.name[:60]}-image"]
    changes += [f"{key}=null" for key in _DROPPED]
    names = [key.name for _, key in keys_of(Experiment) if key.name not in _KEPT]
    for name, experiment in recipe.experiments.items():
        place = f"experiments.{name}"
        if name not in wanted or not (experiment.setup or experiment.container):
            changes.append(f"{place}=null")
            continue
        changes += [f"{place}.{key}=null" for key in names]
        changes.append(f"{place}.command={json.dumps('true')}")
        changes += [f"{place}.env.{key}=null" for key, value in experiment.env.items() if "{{" in value]
        if experiment.chooses_image:
            changes.append(f"{place}.container={experiment.container}")
    if all(f"experiments.{name}=null" in changes for name in recipe.experiments):
        raise UsageError(
            f"{recipe.file}: no experiment has `setup` or `container`: there is nothing to put into an image",
            "Its machines start from the provider's own image.",
        )
    return read_recipe(path, overrides=changes, provider=recipe.provider)  # one of several places


class HomeImages:
    """Those that a home has made.

    Args:
        service: the home, as the team sees it.
        environ: of the caller: credentials.
        sees: whether the caller sees what is a team's.
    """

    def __init__(
        self,
        service: OpenHome,
        environ: Mapping[str, str],
        sees: Callable[[str | None], bool] = lambda _: True,
    ) -> None:
        self._service, self._environ = service, environ
        self._sees = sees

    def listed(self, provider: str | None = None) -> list[dict[str, Any]]:
        """As ``image ls --json`` prints them, the newest of each provider first.

        Args:
            provider: that has them; None: all that can be asked from here.

        Raises:
            UsageError: that provider makes no images, or cannot be used.
            ProviderError: it cannot be reached.
        """
        return [
            {"provider": name, **asdict(image)}
            for name, _, image in self._all(provider)
            if self._sees(image.team or None)
        ]

    def remove(self, image: str, provider: str | None = None) -> list[dict[str, Any]]:
        """Remove one, or do nothing if it is gone; what it was.

        Raises:
            UsageError, ProviderError: see `listed`.
        """
        found = []
        for name, baker, one in self._all(provider):
            if one.id == image and self._sees(one.team or None) and baker.remove_image(image):
                found.append({"provider": name, **asdict(one)})
        return found

    def _all(self, provider: str | None) -> Iterator[tuple[str, Baker, BakedImage]]:
        names = [name for name in (*PROVIDERS.built_in, *PROVIDERS.plug_ins()) if capabilities_of(name).bakes]
        if provider is not None:
            if provider not in names:
                raise UsageError(f"provider {provider} makes no images", f"These do: {', '.join(names)}.")
            names = [provider]
        for name in names:
            try:
                found = get_provider(name, self._service.place(name, self._environ))
                found.check_settings()
                found.check_up()
            except TrainmasterError:
                if provider is not None:
                    raise
                continue  # no lab is up, or there are no credentials
            try:
                if isinstance(found, Baker):
                    for image in found.images():
                        yield name, found, image
            finally:
                found.close()
