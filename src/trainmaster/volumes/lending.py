"""What of our environment another machine needs to use an object store in our name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from trainmaster.volumes.objects import split_url

#: By scheme: how the names of its variables begin.
_BEGINNINGS = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_",),
    "az": ("AZURE_",),
    "hdfs": ("HADOOP_USER_NAME",),
}
#: What these name lies on this machine only.
_ENDS_HERE = ("_FILE", "_PROFILE", "_PATH", "_URI")
_KEY_FILES = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")


def lent_environment(uri: str, environ: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Settings and credentials with which another machine can use a store as we do.

    Args:
        uri: of anything in the store.
        environ: of this process by default.

    Returns:
        Variables; None if the store can be used on this machine only.

    >>> lent_environment("s3://b/x", {"AWS_REGION": "eu", "AWS_PROFILE": "me", "HOME": "/home/me"})
    {'AWS_REGION': 'eu'}
    >>> lent_environment("file:///store", {}) is None
    True
    """
    environ = os.environ if environ is None else environ
    scheme, _ = split_url(uri)
    beginnings = _BEGINNINGS.get(scheme)
    if beginnings is None:
        return None
    lent = {
        name: value
        for name, value in environ.items()
        if name.startswith(beginnings) and not name.endswith(_ENDS_HERE) and name not in _KEY_FILES
    }
    if scheme == "gs" and (key := _google_key(environ)):
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
    environ = os.environ if environ is None else environ
    scheme, rest = split_url(uri)
    if scheme == "hdfs":
        return urlsplit(f"//{rest}").hostname or ""
    names = {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "gs": ("GOOGLE_BASE_URL",),
        "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    }
    endpoint = next((environ[name] for name in names.get(scheme, ()) if environ.get(name)), "")
    return urlsplit(endpoint).hostname or ""


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
