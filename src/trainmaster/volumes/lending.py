"""What of our environment another machine needs to use an object store in our name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from trainmaster.volumes._amazon import DEFAULT_REGION, amazon_settings, profile_credentials
from trainmaster.volumes.objects import ENDPOINT_VARIABLES, split_url

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


def lent_environment(uri: str, environ: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Settings and credentials with which another machine can use a store as we do.

    Args:
        uri: of anything in the store.
        environ: look nowhere else; by default in that of this process, then, for S3, in the profile. Keys of
            roles and SSO are valid for an hour or so: ask anew for whatever may take longer.

    Returns:
        Variables; None if the store can be used on this machine only.

    Raises:
        UsageError: the profile that is asked for is not there, or has no credentials.

    >>> lent_environment("az://b/x", {"AZURE_TENANT_ID": "t", "AWS_REGION": "eu", "HOME": "/home/me"})
    {'AZURE_TENANT_ID': 't'}
    >>> lent_environment("file:///store", {}) is None
    True
    """
    given = os.environ if environ is None else environ
    scheme, _ = split_url(uri)
    beginnings = _BEGINNINGS.get(scheme)
    if beginnings is None:
        return None
    lent = {
        name: value
        for name, value in given.items()
        if name.startswith(beginnings) and not name.endswith(_ENDS_HERE) and name not in _KEY_FILES
    }
    if scheme == "s3":
        lent |= _amazon(environ)
    if scheme == "gs" and (key := _google_key(given)):
        lent.setdefault("GOOGLE_SERVICE_ACCOUNT_KEY", key)
    if scheme == "hdfs" and "HADOOP_USER_NAME" not in lent:
        import getpass

        lent["HADOOP_USER_NAME"] = getpass.getuser()
    return lent


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
    names = ENDPOINT_VARIABLES.get(scheme, ())
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
                is_key = json.loads(text).get("type") == "service_account"
            except (OSError, ValueError, AttributeError):
                return ""
            return text if is_key else ""
    return ""
