"""`OpenstackLogin`: who asks: of ``clouds.yaml``, which every tool of OpenStack reads, or of ``OS_...``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.openstack.settings import OPENSTACK, OpenstackSettings
from trainmaster.spec.addresses import is_loopback, url_parts
from trainmaster.spec.errors import UsageError
from trainmaster.spec.plain_json import mapping_in, yaml_mapping
from trainmaster.transport.checked_connection import MayReach, team_may_reach

_EXAMPLE: Final = (
    "clouds:\n  ours:\n    auth_type: v3applicationcredential\n    auth:\n"
    "      auth_url: https://keystone.example.org:5000/v3\n      application_credential_id: ...\n"
    "      application_credential_secret: ..."
)
#: Variables that stand for keys of ``auth``; others for keys beside it.
_AUTH: Final = (
    "auth_url", "username", "user_id", "password", "token", "project_id", "project_name", "user_domain_id",
    "user_domain_name", "project_domain_id", "project_domain_name", "domain_id", "domain_name",
    "application_credential_id", "application_credential_name", "application_credential_secret",
)  # fmt: skip
_BESIDE: Final = ("region_name", "interface", "cacert", "auth_type")


@dataclass(frozen=True, slots=True)
class OpenstackLogin:
    """Of one project.

    Attributes:
        url: of Keystone's version 3.
        body: what it is asked for a token with.
        region: empty for the only one.
        interface: ``public``, ``internal`` or ``admin``.
        authorities: file of certificates; empty for the system's.
        name: of the cloud, for messages.
        told: the keys of ``clouds.yaml`` that it was read from.
        may_reach: which addresses may be connected to with it; None for all.
    """

    url: str
    body: Mapping[str, Any] = field(repr=False)
    region: str = ""
    interface: str = "public"
    authorities: str = ""
    name: str = "openstack"
    told: Mapping[str, Any] = field(default_factory=dict, repr=False)
    may_reach: MayReach | None = field(default=None, repr=False)

    @property
    def is_in_clear(self) -> bool:
        """Whether who is on the way to Keystone could read what is sent."""
        address = urlsplit(self.url)
        return address.scheme == "http" and not is_loopback(address.hostname or "")

    @property
    def is_credential(self) -> bool:
        """Whether it is an application credential."""
        return "application_credential" in self.body["auth"]["identity"]

    def by(self, made: Mapping[str, Any]) -> OpenstackLogin:
        """The same by an application credential, as Keystone told it when it was made."""
        auth = {
            "auth_url": self.url,
            "application_credential_id": made["id"],
            "application_credential_secret": made["secret"],
        }
        told = {**self.told, "auth_type": "v3applicationcredential", "auth": auth}
        return replace(login_of(self.name, told), may_reach=self.may_reach)


def login_at(root: Path, environ: Mapping[str, str]) -> tuple[OpenstackSettings, OpenstackLogin]:
    """The settings of a home, and who asks by them.

    Raises:
        UsageError: there are no settings or no login, or a mistake in them.
    """
    settings = OPENSTACK.read(root, environ)
    return settings, read_login(settings.cloud, environ)


def read_login(cloud: str, environ: Mapping[str, str], here: Path | None = None) -> OpenstackLogin:
    """Who asks.

    Args:
        cloud: of ``clouds.yaml``; empty for ``OS_CLOUD``, else the variables, else the only one there.
        environ: the caller's variables.
        here: where ``clouds.yaml`` may lie, too; None for the working directory.

    Raises:
        UsageError: what is missing; no value is ever told.
    """
    name = cloud or environ.get("OS_CLOUD", "")
    if not name and environ.get("OS_AUTH_URL"):
        told: dict[str, Any] = {
            key: environ[word] for key in (*_AUTH, *_BESIDE) if (word := f"OS_{key.upper()}") in environ
        }
        told.setdefault("project_name", environ.get("OS_TENANT_NAME", ""))
        beside: dict[str, Any] = {key: told.pop(key) for key in _BESIDE if key in told}
        return _within("the variables OS_...", {**beside, "auth": told}, environ)
    file, clouds = _clouds("clouds", "OS_CLIENT_CONFIG_FILE", environ, here)
    if not clouds:
        raise UsageError(
            "there is no login to an OpenStack: no clouds.yaml, and no variable OS_AUTH_URL",
            f"Write ~/.config/openstack/clouds.yaml, for instance:\n{_EXAMPLE}",
        )
    name = name or (str(next(iter(clouds))) if len(clouds) == 1 else "")
    if name not in clouds:
        wanted = f"no cloud {name!r}" if name else "several clouds"
        raise UsageError(
            f"{file} has {wanted}", f"Name one of {', '.join(map(str, clouds))} as `cloud` in openstack.yaml."
        )
    _, secure = _clouds("secure", "OS_CLIENT_SECURE_FILE", environ, here)
    return _within(name, mapping_in(_merged(clouds[name], secure.get(name))), environ)


def _within(name: str, told: Mapping[str, Any], environ: Mapping[str, str]) -> OpenstackLogin:
    """One that connects to no more than these variables allow: Keystone names the other addresses."""
    return replace(login_of(name, told), may_reach=team_may_reach(environ))


def login_of(name: str, told: Mapping[str, Any]) -> OpenstackLogin:
    """A login of what an entry says.

    Args:
        name: of the cloud.
        told: keys as in ``clouds.yaml``.

    Raises:
        UsageError: what is missing.
    """
    auth = {key: str(value) for key, value in mapping_in(told.get("auth")).items() if value not in (None, "")}
    if "auth_url" not in auth:
        raise UsageError(
            f"OpenStack: {name} names no auth_url",
            "Write it; entries with `profile` only are not known here. Such as:\n" + _EXAMPLE,
        )
    if str(told.get("verify", True)).lower() in ("false", "no", "0"):
        raise UsageError(
            f"OpenStack: {name} says `verify: false`: anybody on the way could read the password",
            "Name the file of your site's certificates as `cacert` instead.",
        )
    url = auth["auth_url"].rstrip("/")
    url_parts(url, f"OpenStack: auth_url of {name}")
    return OpenstackLogin(
        url if url.endswith("/v3") else f"{url}/v3",
        {"auth": _asked(name, auth)},
        region=str(told.get("region_name") or ""),
        interface=str(told.get("interface") or "public").removesuffix("URL"),
        authorities=os.path.expanduser(str(told.get("cacert") or "")),  # noqa: PTH111 - no file is no path
        name=name,
        told=told,
    )


def _asked(name: str, auth: Mapping[str, str]) -> dict[str, Any]:
    """The body of the request for a token."""
    user = _known_as(auth, "user", "username")
    if secret := auth.get("application_credential_secret"):
        found: dict[str, Any] = {"secret": secret}
        if "application_credential_id" in auth:
            found["id"] = auth["application_credential_id"]
        else:
            found |= {"name": auth.get("application_credential_name", ""), "user": user}
        return {"identity": {"methods": ["application_credential"], "application_credential": found}}
    shown: dict[str, Any]
    if "password" in auth:
        method, shown = "password", {"user": {**user, "password": auth["password"]}}
    elif "token" in auth:
        method, shown = "token", {"id": auth["token"]}
    else:
        raise UsageError(
            f"OpenStack: {name} has neither an application credential nor a password",
            "Make one: `openstack application credential create trainmaster`. Logins through a browser end "
            "after hours; a run may take longer.",
        )
    if "project_id" not in auth and "project_name" not in auth:
        raise UsageError(f"OpenStack: {name} names no project", "Write project_name or project_id.")
    scope = {"project": _known_as(auth, "project", "project_name")}
    return {"identity": {"methods": [method], method: shown}, "scope": scope}


def _known_as(auth: Mapping[str, str], of: str, named: str) -> dict[str, Any]:
    """A user or a project: by its id, or by its name and domain."""
    if f"{of}_id" in auth:
        return {"id": auth[f"{of}_id"]}
    domains = ((auth.get(f"{key}_{by}"), by) for key in (f"{of}_domain", "domain") for by in ("id", "name"))
    domain = next(({by: value} for value, by in domains if value), {"id": "default"})
    return {"name": auth.get(named, ""), "domain": domain}


def _clouds(
    name: str, variable: str, environ: Mapping[str, str], here: Path | None
) -> tuple[Path | None, dict[str, Any]]:
    """The first ``NAME.yaml`` where OpenStack's own tools look, if there is one, and its clouds."""
    told = environ.get(variable)
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    folders = [here or Path(), config / "openstack", Path("/etc/openstack")]
    looked = (
        [Path(told)] if told else [folder / f"{name}.{end}" for folder in folders for end in ("yaml", "yml")]
    )
    file = next((file for file in looked if file.is_file()), None)
    said = yaml_mapping(file, f"Such as:\n{_EXAMPLE}") if file is not None else {}
    return file, mapping_in(said.get("clouds"))


def _merged(below: Any, above: Any) -> Any:  # noqa: ANN401 - of YAML
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: _merged(below.get(key), value) for key, value in above.items()}
    return below if above is None else above
