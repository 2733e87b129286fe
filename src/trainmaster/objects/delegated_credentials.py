"""What of our environment another machine needs to use an object store in our name, and no more of it."""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from trainmaster.objects import az, gs
from trainmaster.objects.amazon import DEFAULT_REGION, amazon_settings, profile_credentials
from trainmaster.objects.narrowing import Grant, NarrowKeys, TooWideKeysError, narrow_amazon, narrow_azure
from trainmaster.objects.plugins import split_url
from trainmaster.spec.plain_json import parsed_json

#: Set, nodes get keys that are good for all that ours are (`--lend-keys`).
WHOLE_KEYS_VARIABLE = "TRAINMASTER_LEND_KEYS"
#: When they run out, Unix seconds, as a text; beside keys that do.
EXPIRES_VARIABLE = "TRAINMASTER_KEYS_EXPIRE"
#: A refusal holds for so long.
_REFUSED_S = 300.0
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD")

#: By scheme: how the names of its variables begin.
_BEGINNINGS = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_",),
    "az": ("AZURE_",),
    "hdfs": ("HADOOP_USER_NAME",),
}
#: What these name lies on this machine only.
_ENDS_HERE = ("_FILE", "_PROFILE", "_PATH", "_URI", "_BUNDLE")
_KEY_FILES = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")


def store_environment(uri: str, environ: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Settings and credentials with which another machine can use a store as we do.

    Args:
        uri: of anything in the store.
        environ: look nowhere else; by default in that of this process, then, for S3, in the profile. Keys of
            roles and SSO are valid for an hour or so: ask anew for whatever may take longer.

    Returns:
        Variables; None if the store can be used on this machine only.

    Raises:
        UsageError: the profile that is asked for is not there, or has no credentials.

    >>> store_environment("az://b/x", {"AZURE_TENANT_ID": "t", "AWS_REGION": "eu", "HOME": "/home/me"})
    {'AZURE_TENANT_ID': 't'}
    >>> store_environment("file:///store", {}) is None
    True
    """
    given = os.environ if environ is None else environ
    scheme, _ = split_url(uri)
    beginnings = _BEGINNINGS.get(scheme)
    if beginnings is None:
        return None
    credentials = {
        name: value
        for name, value in given.items()
        if name.startswith(beginnings) and not name.endswith(_ENDS_HERE) and name not in _KEY_FILES
    }
    if scheme == "s3":
        credentials |= _amazon(environ)
    if scheme == "gs" and (key := _google_key(given)):
        credentials.setdefault("GOOGLE_SERVICE_ACCOUNT_KEY", key)
    if scheme == "hdfs" and "HADOOP_USER_NAME" not in credentials:
        import getpass

        credentials["HADOOP_USER_NAME"] = getpass.getuser()
    return credentials


class DelegatedCredentials:
    """Lends nodes what they need of our object stores: keys for the part that is granted, for some hours.

    Threads share it. Keys that were made are lent again until a third of their life is over.

    Args:
        clock: gives Unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[tuple[object, ...], tuple[float, NarrowKeys]] = {}
        self._refused: dict[tuple[object, ...], tuple[float, TooWideKeysError]] = {}

    def environment(self, grants: Sequence[Grant]) -> dict[str, str] | None:
        """Settings and credentials with which another machine can do what is granted.

        Args:
            grants: what. The whole keys are lent instead where `WHOLE_KEYS_VARIABLE` is set, where they
                are no secret, and where they are a SAS, which was made to be given away.

        Returns:
            Variables; None if one of the stores can be used on this machine only.

        Raises:
            TooWideKeysError: our keys are good for more, and no narrower ones can be made of them.
            UsageError: there are no credentials where there should be.
            PublishError: what makes narrow keys does not answer.
        """
        found: dict[str, str] = {}
        by_scheme: dict[str, list[Grant]] = {}
        for grant in dict.fromkeys(grants):
            by_scheme.setdefault(split_url(grant.uri)[0], []).append(grant)
        for scheme, of_it in by_scheme.items():
            credentials = store_environment(of_it[0].uri)
            if credentials is None:
                return None
            found |= credentials if gives_whole_keys() else self._narrowed(scheme, credentials, of_it)
        return found

    def _narrowed(
        self, scheme: str, credentials: Mapping[str, str], grants: Sequence[Grant]
    ) -> dict[str, str]:
        secrets = {name: value for name, value in credentials.items() if _SECRET.search(name)}
        if not secrets or secrets.keys() <= {"AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"}:
            return dict(credentials)
        open_ = {name: value for name, value in credentials.items() if name not in secrets}
        key = (scheme, frozenset(grants), frozenset(secrets.items()))
        with self._lock:  # a thread that comes meanwhile gets the same
            now = self._clock()
            refused_at, refusal = self._refused.get(key, (0.0, None))
            if refusal is not None and 0 <= now - refused_at < _REFUSED_S:
                raise refusal
            made_at, keys = self._made.get(key, (0.0, None))
            if keys is None or not 0 <= now - made_at < (keys.expires_at - made_at) / 3:
                try:
                    keys = _narrow(scheme, credentials, grants)
                except TooWideKeysError as error:
                    self._refused[key] = (now, error)
                    raise
                self._made[key] = (now, keys)
        return {**open_, **keys.environment, EXPIRES_VARIABLE: f"{keys.expires_at:.0f}"}


def gives_whole_keys() -> bool:
    """Whether the user wants nodes to have all that our own keys are good for."""
    return os.environ.get(WHOLE_KEYS_VARIABLE, "").lower() in ("1", "true", "yes")


def give_whole_keys() -> None:
    """From now on, also in what this process starts."""
    os.environ[WHOLE_KEYS_VARIABLE] = "true"


def _narrow(scheme: str, keys: Mapping[str, str], grants: Sequence[Grant]) -> NarrowKeys:
    if scheme == "s3" and {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= keys.keys():
        return narrow_amazon(keys, grants)
    if scheme == "az":
        return narrow_azure(keys, grants)
    raise TooWideKeysError(
        f"no narrower keys can be made for {scheme}://",
        "`--lend-keys` lends nodes all that your own are good for.",
    )


def store_host(uri: str, environ: Mapping[str, str] | None = None) -> str:
    """The host that a store's settings name; empty if it is a public service.

    >>> store_host("s3://b/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:8333"})
    '127.0.0.1'
    """
    given = os.environ if environ is None else environ
    scheme, rest = split_url(uri)
    if scheme == "hdfs":
        return urlsplit(f"//{rest}").hostname or ""
    if scheme == "s3":
        return urlsplit(amazon_settings(environ).endpoint_url).hostname or ""
    names = {"gs": gs.ENDPOINT_VARIABLES, "az": az.ENDPOINT_VARIABLES}.get(scheme, ())
    endpoint = next((given[name] for name in names if given.get(name)), "")
    return urlsplit(endpoint).hostname or ""


def _amazon(environ: Mapping[str, str] | None) -> dict[str, str]:
    """All that decides how S3 is reached: a profile of the other machine is not to add to it."""
    settings = amazon_settings(environ)
    found = {"AWS_REGION": settings.region or DEFAULT_REGION}
    if settings.endpoint_url:
        found["AWS_ENDPOINT_URL_S3"] = settings.endpoint_url
    else:
        found["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true"
    if environ is None and (credentials := profile_credentials()):
        found |= credentials.environment()
    return found


def _google_key(environ: Mapping[str, str]) -> str:
    """The text of a service account's key file, if that is what we use."""
    for name in _KEY_FILES:
        if place := environ.get(name):
            try:
                text = Path(place).read_text(encoding="utf-8")
                is_key = parsed_json(text).get("type") == "service_account"
            except (OSError, ValueError, AttributeError):
                return ""
            return text if is_key else ""
    return ""
