"""What the machine that drives a run is given to do so with, and how that is told before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.control.layout import Home
from trainmaster.objects.delegated_credentials import store_environment
from trainmaster.providers.capabilities import OfferSource, capabilities_of

if TYPE_CHECKING:
    from trainmaster.spec import Recipe

#: Variables that a driver needs where they are set.
_SETTINGS: Final = ("TRAINMASTER_AWS_", "TRAINMASTER_NODE_", "TRAINMASTER_CAPACITY_")
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AMAZON: Final = (*_KEYS, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL")


def sent_to_machine(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What the first machine of a run is sent so that it can drive it, a line each.

    Args:
        recipe: of the run.
        environ: of the caller.

    Raises:
        UsageError: the credentials cannot be read.
    """
    store_url = Home.from_environment(environ).store_url
    found = driver_environment(environ, recipe.provider, store_url)
    key = found.get("AWS_ACCESS_KEY_ID", "")
    store = f"what this machine uses {store_url} with" + (f" (access key {key})" if key else "")
    lines = [f"{store}, as wide as it is", "the key that opens the machines of this home"]
    if capabilities_of(recipe.provider).offers is OfferSource.LAB:
        lines.insert(0, "the access key of the lab: it rents there without a limit")
    elif key:
        lines[0] = f"{lines[0]}; it also rents machines, with all that AWS allows it"
    names = {name for experiment in recipe.experiments.values() for name in experiment.secrets}
    return [*lines, *([f"secrets of the run: {', '.join(sorted(names))}"] if names else [])]


def driver_environment(environ: Mapping[str, str], provider: str, store_url: str) -> dict[str, str]:
    """What of a caller's variables the driver gets: settings, and credentials as they are now.

    Args:
        environ: of the caller.
        provider: of the run's machines.
        store_url: of its models.

    Raises:
        UsageError: the credentials cannot be read.
    """
    found = {name: value for name, value in environ.items() if name.startswith(_SETTINGS)}
    found |= store_environment(store_url) or {}
    if capabilities_of(provider).offers is OfferSource.LAB:
        return found
    found |= {name: environ[name] for name in _AMAZON if name in environ}
    if "AWS_ACCESS_KEY_ID" not in found:
        import boto3

        credentials = boto3.session.Session(profile_name=environ.get("AWS_PROFILE")).get_credentials()
        if credentials is not None:
            now = credentials.get_frozen_credentials()
            found |= {"AWS_ACCESS_KEY_ID": now.access_key, "AWS_SECRET_ACCESS_KEY": now.secret_key}
            if now.token:
                found["AWS_SESSION_TOKEN"] = now.token
    return found
