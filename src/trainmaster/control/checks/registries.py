"""Whether a registry has an image, asked as anybody may ask: nothing is downloaded, no engine is needed."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, NamedTuple

_HUB: Final = "registry-1.docker.io"
_ANSWER_S: Final = 10.0
_MOST_BYTES: Final = 1 << 20
_LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")
_KINDS: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')


class Reference(NamedTuple):
    """An image's name in its parts."""

    host: str
    name: str
    version: str


class Look(NamedTuple):
    """What a look has shown.

    Attributes:
        is_missing: there certainly is no such image for whoever has no login.
        words: what is wrong; empty if it is there.
    """

    is_missing: bool
    words: str


def split_reference(image: str) -> Reference:
    """The registry, the repository and the tag or digest that an image's name means.

    >>> split_reference("python:3.12")
    Reference(host='registry-1.docker.io', name='library/python', version='3.12')
    >>> split_reference("localhost:5000/me/x@sha256:12")
    Reference(host='localhost:5000', name='me/x', version='sha256:12')
    """
    rest, _, digest = image.partition("@")
    host, slash, path = rest.partition("/")
    if not slash or not (set(".:") & set(host) or host == "localhost"):
        host, path = "docker.io", rest
    path, _, tag = path.partition(":")
    if host in ("docker.io", "index.docker.io"):
        host, path = _HUB, path if "/" in path else f"library/{path}"
    return Reference(host, path, digest or tag or "latest")


def look_for_image(image: str) -> Look:
    """Ask the registry of an image whether it has it."""
    host, name, version = split_reference(image)
    scheme = "http" if host.startswith(_LOCAL) else "https"
    url = f"{scheme}://{host}/v2/{name}/manifests/{version}"
    try:
        try:
            _open(url)
        except urllib.error.HTTPError as error:
            if error.code != http.client.UNAUTHORIZED:
                raise
            _open(url, _token(error.headers.get("WWW-Authenticate", "")))
    except urllib.error.HTTPError as error:
        if error.code == http.client.NOT_FOUND:
            return Look(True, f"{host} has no image {name}:{version}")
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            # The hub says so of all that it does not have, too.
            return Look(host == _HUB, f"{host} has no image {name}:{version}, or only for those who log in")
        return Look(False, f"{host} cannot say whether it has {name}:{version} ({error.code})")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return Look(False, f"{host} cannot be asked for {name}:{version} ({reason})")
    return Look(False, "")


def _open(url: str, token: str = "") -> bytes:
    request = urllib.request.Request(url, headers={"Accept": _KINDS})  # noqa: S310 - http(s) only
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
        return bytes(answer.read(_MOST_BYTES))


def _token(challenge: str) -> str:
    """What lets anybody in, as the registry says; empty if it wants something else."""
    fields = dict(_CHALLENGE.findall(challenge))
    realm = fields.pop("realm", "")
    if not challenge.lower().startswith("bearer") or not realm.startswith(("https://", "http://")):
        return ""
    asked = {key: fields[key] for key in ("service", "scope") if key in fields}
    answer = json.loads(_open(f"{realm}?{urllib.parse.urlencode(asked)}"))
    return str(answer.get("token") or answer.get("access_token") or "") if isinstance(answer, dict) else ""
