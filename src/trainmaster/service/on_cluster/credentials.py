"""What the machine that drives a run is given to do so with, and how that is told before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.layout import Home
from trainmaster.objects.delegated_credentials import store_environment
from trainmaster.objects.narrowing import ROLE_VARIABLE as LEND_VARIABLE
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.capabilities import OfferSource, capabilities_of
from trainmaster.providers.sent_settings import SentSettings, sent_settings
from trainmaster.spec.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from trainmaster.spec import DataSource, Recipe

#: Names the AWS profile whose keys are sent instead of the user's own: narrower ones.
PROFILE_VARIABLE: Final = "TRAINMASTER_DRIVER_PROFILE"
#: Or a role that is assumed for the machine, with what `run_policy` allows and no more.
ROLE_VARIABLE: Final = "TRAINMASTER_DRIVER_ROLE"
#: As long as a role allows it: what AWS gives at most, and always.
_LIVES_S: Final = (43_200, 3_600)
#: Variables that a driver needs where they are set.
_SETTINGS: Final = ("TRAINMASTER_AWS_", "TRAINMASTER_NODE_", "TRAINMASTER_CAPACITY_", LEND_VARIABLE)
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
    sent = sent_by(recipe.provider, environ)
    if (profile := environ.get(PROFILE_VARIABLE)) and store_url.startswith("s3://"):
        store = f"the keys of the AWS profile {profile} (access key {key}), also for {store_url}"
    elif profile and sent is None:
        profiles = f"the keys of the AWS profile {profile} (access key {key})"
        store = f"{profiles}, and what this machine uses {store_url} with"
    opens = "the key that opens the machines of this home: onto its disk, for its user only, until its end"
    lines = [f"{store}, as wide as they are", opens]
    if sent is not None:
        lines[1:1] = sent.words
    elif capabilities_of(recipe.provider).offers is OfferSource.LAB:
        lines.insert(0, "the access key of the lab: it rents there without a limit")
    elif role := environ.get(ROLE_VARIABLE):
        keys = f"keys of the role {role} for {_LIVES_S[0] // 3600} h at most"
        lines[0] = (
            f"{keys}: they rent and end what bears this run's tags, of its types, read {store_url} and the "
            "run's data, and write what is the run's"
        )
        if not store_url.startswith("s3://"):
            lines.insert(1, store)
    elif key:
        lines[0] = f"{lines[0]}; they also rent machines, with all that AWS allows them"
        if not environ.get(PROFILE_VARIABLE):
            lines.insert(1, f"a role would narrow them to this run: {ROLE_VARIABLE}, docs/aws/permissions.md")
    names = {name for experiment in recipe.experiments.values() for name in experiment.secrets}
    return [*lines, *([f"secrets of the run: {', '.join(sorted(names))}"] if names else [])]


def check_narrow(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse to send keys as wide as they are to the first machine of a run, where there is no question.

    The lab's machines are processes of this one: no key leaves it.

    Raises:
        UsageError: saying how narrower keys are made.
    """
    if capabilities_of(recipe.provider).offers is OfferSource.LAB:
        return
    sent = sent_by(recipe.provider, environ)
    store_url = Home.from_environment(environ).store_url
    is_amazons = store_url.startswith("s3://")
    if environ.get(PROFILE_VARIABLE) and is_amazons and not (sent and sent.is_wide):
        return
    if sent is None and environ.get(ROLE_VARIABLE) and is_amazons:
        return
    if sent is not None:
        told = ", ".join([*sent.words, f"your keys of {store_url}"])
        raise UsageError(
            f"--on-cluster: a machine would be sent {told}, and nobody is asked",
            "Nothing was started. `--send-keys` sends that; without `--yes`, at a terminal, you are asked. "
            f"{PROFILE_VARIABLE} names an AWS profile whose keys are narrower than yours.",
        )
    is_narrow = environ.get(ROLE_VARIABLE) or environ.get(PROFILE_VARIABLE)  # for renting
    what = f"your keys of {store_url}" if is_narrow else "your keys"
    narrower = (
        f"Make a role for it and name it in {ROLE_VARIABLE} (docs/aws/permissions.md): its keys are narrowed "
        f"to this run. Or name a narrower AWS profile in {PROFILE_VARIABLE}. "
    )
    raise UsageError(
        f"--on-cluster: {what} would be sent to a machine as wide as they are, and nobody is asked",
        f"Nothing was started. {narrower if is_amazons else ''}`--send-keys` sends them; without `--yes`, at "
        "a terminal, you are shown what is sent and asked.",
    )


def sent_by(provider: str, environ: Mapping[str, str]) -> SentSettings | None:
    """What of a place's settings is sent; None if its machines need none, or cannot drive.

    Raises:
        UsageError: what is missing there, or cannot be sent.
    """
    return sent_settings(provider, ProviderPlace(Home.from_environment(environ).root, "", environ))


def driver_environment(
    environ: Mapping[str, str], provider: str, store_url: str, policy: str = ""
) -> dict[str, str]:
    """What of a caller's variables the driver gets: settings, and credentials as they are now.

    Args:
        environ: of the caller.
        provider: of the run's machines.
        store_url: of its models.
        policy: what a role that is named is to be narrowed to; empty while only what is sent is told.

    Raises:
        UsageError: the credentials cannot be read.
    """
    found = {name: value for name, value in environ.items() if name.startswith(_SETTINGS)}
    found |= store_environment(store_url) or {}
    if capabilities_of(provider).offers is OfferSource.LAB:
        return found
    if (sent := sent_by(provider, environ)) is not None:  # it needs keys of the store only
        narrow = environ.get(PROFILE_VARIABLE) if store_url.startswith("s3://") else None
        if narrow:
            found = {name: value for name, value in found.items() if name not in _KEYS} | _keys_of(narrow)
        return {**found, **sent.environ}
    found |= {name: environ[name] for name in _AMAZON if name in environ}
    if policy and (role := environ.get(ROLE_VARIABLE)):
        own = found if "AWS_ACCESS_KEY_ID" in found else _keys_of(environ.get("AWS_PROFILE"))
        kept = {name: value for name, value in found.items() if name not in _KEYS}
        return {**kept, **_assumed(role, policy, {name: own[name] for name in _KEYS if name in own})}
    if narrow := environ.get(PROFILE_VARIABLE):
        return {**{name: value for name, value in found.items() if name not in _KEYS}, **_keys_of(narrow)}
    return found if "AWS_ACCESS_KEY_ID" in found else {**found, **_keys_of(environ.get("AWS_PROFILE"))}


def policy_of(
    environ: Mapping[str, str], home: str, run: str, instance_types: Iterable[str], recipe: Recipe, store: str
) -> str:
    """What keys of a role are narrowed to: the run's tags, its types of machines, its data and its store.

    Args:
        environ: of the caller.
        home: its identity.
        run: its id.
        instance_types: that the run was planned with.
        recipe: of the run.
        store: URL of its models.

    Returns:
        A policy.

    Raises:
        UsageError: there is no such policy.
        PublishError: a volume's store cannot be read.
    """
    from trainmaster.providers.aws.run_policy import run_policy

    lend = environ.get(LEND_VARIABLE, "")  # not itself: those keys would not be narrow any more
    sources = [source for each in recipe.experiments.values() for source in each.data.values()]
    reads = [url for source in sources for url in _read_from(source, store)]
    return run_policy(
        home, run, instance_types, store, reads, lend if lend != environ.get(ROLE_VARIABLE) else ""
    )


def _read_from(source: DataSource, store_url: str) -> list[str]:
    """Where data of a run lie on S3."""
    from trainmaster.control.attempt.data_sources import volume_url
    from trainmaster.objects import ObjectStore
    from trainmaster.volumes.packed.addresses import volume_address
    from trainmaster.volumes.packed.head import read_head

    found = [source.url or "", source.model_uri or ""]
    address = volume_url(source.volume or "", store_url)
    if source.volume is not None and address.startswith("s3://"):
        place = volume_address(address)
        found.append(place.url)
        with suppress(NotFoundError):  # it is built in
            found.append(read_head(ObjectStore(place.url), place.version).source_url)  # of an indexed one
    return [url for url in found if url.startswith("s3://")]


def _keys_of(profile: str | None) -> dict[str, str]:
    """Keys of an AWS profile as they are now; None: whatever boto3 finds."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        credentials = boto3.session.Session(profile_name=profile).get_credentials()
        now = None if credentials is None else credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise UsageError(
            f"the keys for the machine cannot be read: {error}", f"Check AWS_PROFILE and {PROFILE_VARIABLE}."
        ) from None
    if now is None:
        return {}
    found = {"AWS_ACCESS_KEY_ID": now.access_key, "AWS_SECRET_ACCESS_KEY": now.secret_key}
    return found | ({"AWS_SESSION_TOKEN": now.token} if now.token else {})


def _assumed(role: str, policy: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Keys of a role, narrowed, for as long as it allows."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "sts",
        aws_access_key_id=keys.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=keys.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=keys.get("AWS_SESSION_TOKEN"),
    )
    life_s = _LIVES_S[0]
    while True:
        try:
            made = client.assume_role(
                RoleArn=role, RoleSessionName="trainmaster", Policy=policy, DurationSeconds=life_s
            )["Credentials"]
        except (BotoCoreError, ClientError) as error:
            too_long = isinstance(error, ClientError) and error.response["Error"]["Code"] == "ValidationError"
            if life_s == _LIVES_S[-1] or not too_long:
                hint = f"Check {ROLE_VARIABLE}."
                raise UsageError(f"the role {role} cannot be assumed: {error}", hint) from None
            life_s = _LIVES_S[-1]
            continue
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
        return {variable: str(made[name]) for variable, name in zip(_KEYS, names, strict=True)}
