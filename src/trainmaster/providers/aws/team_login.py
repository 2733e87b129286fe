"""How a team rents with its own keys of AWS: `TEAM_LOGIN`, and `settings_of` a place that has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from trainmaster.providers.aws.settings import AwsSettings, configured_region
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.sent_settings import SentSettings
from trainmaster.providers.team_login import LoginKind, check_address
from trainmaster.spec.addresses import address_of, name_of
from trainmaster.spec.errors import UsageError, fails_as, imports_of

_KEY_ID: Final = "AWS_ACCESS_KEY_ID"
_SECRET: Final = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
_REGION: Final = "AWS_REGION"
_ENDPOINT: Final = "AWS_ENDPOINT_URL"
_SETTINGS: Final = tuple(
    f"TRAINMASTER_AWS_{name}"
    for name in ("IMAGE", "USER", "VPC", "SSH_FROM", "INSIDE_VPC", "DISK_GIB", "PUBLIC_ADDRESSES")
)


def settings_of(place: ProviderPlace) -> AwsSettings:
    """What the variables of a place say; with a team's own keys, where it has some, and no others.

    Raises:
        UsageError: a value that means nothing.
    """
    found = AwsSettings.from_environment(place.environ)
    if not place.team:
        return found
    return replace(found, access_key_id=place.environ[_KEY_ID], secret_access_key=place.environ[_SECRET])


def _own_login(place: ProviderPlace) -> SentSettings:
    """The keys of the user's profile, which must not end by themselves."""
    with imports_of("aws", "the login of a team to AWS"):
        import botocore.session
        from botocore.exceptions import BotoCoreError

    try:
        session = botocore.session.Session(profile=place.environ.get("AWS_PROFILE") or None)
        credentials = session.get_credentials()
        now = None if credentials is None else credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise UsageError(f"the keys of AWS cannot be read: {error}", "Check AWS_PROFILE.") from None
    if now is None or now.token:
        what = "there are no keys of AWS here" if now is None else "your keys of AWS end by themselves"
        hint = "Name a profile with an access key of a user by AWS_PROFILE: docs/aws/permissions.md."
        raise UsageError(what, hint)
    if not (region := configured_region(place.environ)):
        raise UsageError("no AWS region is chosen", "Set AWS_REGION, or run `aws configure`.")
    kept = {name: place.environ[name] for name in (_ENDPOINT, *_SETTINGS) if name in place.environ}
    keys = {_KEY_ID: now.access_key, _SECRET: now.secret_key, _REGION: region}
    words = f"the access key {now.access_key}, with all that AWS allows it, for {region}"
    return SentSettings({}, {**kept, **keys}, (words,))


def _check_login(place: ProviderPlace) -> None:
    """Refuse what would leave something to the server's own keys."""
    if missing := [name for name in (_KEY_ID, _SECRET, _REGION) if not place.environ.get(name)]:
        raise UsageError(f"a login to AWS has no {', '.join(missing)}", "`trainmaster team login` sends it.")
    endpoint = settings_of(place).endpoint_url
    check_address(endpoint, place)
    if endpoint.startswith("http:"):
        # boto3 looks the name up itself; over https a certificate says whom it has reached
        with fails_as(f"a login to AWS leads to {endpoint}", "Write https:, or an address.", on=ValueError):
            address_of(name_of(urlsplit(endpoint).netloc))


#: See `LoginKind`.
TEAM_LOGIN: Final = LoginKind(
    _own_login, _check_login, (), (_KEY_ID, _SECRET, _REGION, _ENDPOINT, *_SETTINGS)
)
