"""`LoginKind`: how a team of a server uses a place with an account of its own.

A provider that can be used so has a ``TEAM_LOGIN`` in its module. A manager's machine collects what it uses
the place with. The server keeps that sealed, and makes a `ProviderPlace` of it, without its own login.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import OfferSource, capabilities_of
from trainmaster.providers.own_settings import SettingsKind
from trainmaster.providers.plugins import PROVIDERS
from trainmaster.providers.sent_settings import (
    SentSettings,
    host_key_variable,
    in_memory,
    readable_settings,
    sent_of_site,
)
from trainmaster.providers.site_settings import LoginSettings
from trainmaster.spec.addresses import NETWORKS_VARIABLE, address_of, name_of
from trainmaster.spec.errors import UsageError
from trainmaster.transport.checked_connection import TEAM_VARIABLE, team_may_reach

if TYPE_CHECKING:
    from trainmaster.providers.base import ProviderPlace

#: Of all that a login has.
MOST_BYTES: Final = 256 << 10
#: What a place of a team has of the server's variables.
_NEUTRAL: Final = ("PATH", "LANG", NETWORKS_VARIABLE)


@dataclass(frozen=True, slots=True)
class LoginKind:
    """Of one provider.

    Attributes:
        collect: what a home uses the place with: settings, and a login that works on other machines.
        check: refuses what would have this machine run a command, read a file of its own, or use another
            login than the one that was sent; called with a place that has nothing but that.
        files: variables that name files which are sent, all of them.
        variables: others that may be sent.
        more_files: files that may be sent.
    """

    collect: Callable[[ProviderPlace], SentSettings]
    check: Callable[[ProviderPlace], None]
    files: tuple[str, ...]
    variables: tuple[str, ...] = ()
    more_files: tuple[str, ...] = ()


def login_kind(provider: str) -> LoginKind:
    """That of a provider.

    Raises:
        UsageError: there is no such provider, or a team cannot have an account of its own there.
    """
    found = _stated(provider)
    if found is None:
        has = [name for name in PROVIDERS.built_in if _stated(name)]
        raise UsageError(
            f"provider {provider}: a team cannot have a login of its own there",
            f"It can for {', '.join(has)}.",
        )
    return found


def has_logins(provider: str) -> bool:
    """Whether a team may have an account of its own there."""
    return _stated(provider) is not None


def _stated(provider: str) -> LoginKind | None:
    """What its module says; a lab has no accounts, though its module is that of AWS."""
    if provider in PROVIDERS.built_in and capabilities_of(provider).offers is OfferSource.LAB:
        return None
    found: LoginKind | None = PROVIDERS.stated(provider, "TEAM_LOGIN")
    return found


def collected(provider: str, place: ProviderPlace) -> SentSettings:
    """What is sent of a home's own login to a place.

    Raises:
        UsageError: what is missing there, or works on that machine only.
    """
    kind = login_kind(provider)
    with readable_settings(provider):
        found = kind.collect(place)
    kept = {name: value for name, value in found.environ.items() if name in kind.variables}
    return replace(found, environ=kept)


def team_place(
    provider: str,
    place: ProviderPlace,
    team: str,
    files: Mapping[str, str],
    variables: Mapping[str, str],
    made: Callable[[str], int] = os.memfd_create,
) -> ProviderPlace:
    """A place as a team sees it: with its login, a directory of its own, and nothing of the server's login.

    Args:
        provider: its name.
        place: of the home.
        team: whose login it is.
        files: that were sent, as in `SentSettings`; they are in memory of this process.
        variables: that were sent.
        made: see `in_memory`.

    Raises:
        UsageError: what of it cannot be used here.
    """
    kind = login_kind(provider)
    told = {**dict(files), **dict(variables)}
    known = {*kind.files, *kind.more_files}
    unknown = sorted((set(files) - known) | set(variables).difference(kind.variables))
    missing = sorted(set(kind.files).difference(files))
    if unknown or missing:
        wrong = f"{', '.join(unknown)[:200]} in it" if unknown else f"no {', '.join(missing)}"
        raise UsageError(
            f"provider {provider}: no login that is known here: it has {wrong}",
            "`trainmaster team login` of the same version sends what is needed.",
        )
    if "\0" in "".join(told.values()) or sum(len(each.encode()) for each in told.values()) > MOST_BYTES:
        raise UsageError(
            f"provider {provider}: a login has at most {MOST_BYTES} bytes, and no zeros",
            "Send what `trainmaster team login` collects.",
        )
    neutral = {name: place.environ[name] for name in _NEUTRAL if name in place.environ}
    own = {**neutral, **variables, **in_memory(files, {}, made), TEAM_VARIABLE: team}
    found = place.with_login_of(team, own)
    kind.check(found)
    return found


def check_address(url: str, place: ProviderPlace) -> None:
    """Refuse an address that is the server's own machine, or where clouds tell machines their credentials.

    Names are looked up only when they are connected to (`checked_connection`).

    Args:
        url: that the server is to connect to; a host with or without a port will do.
        place: of the team.

    Raises:
        UsageError: it is one; the administrator may allow this machine by `NETWORKS_VARIABLE`.
    """
    host = name_of(urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2])
    with suppress(ValueError):
        may_reach = team_may_reach(place.environ)
        if may_reach and not may_reach(address_of("127.0.0.1" if host == "localhost" else host)):
            raise UsageError(
                f"a login of a team leads to {url}, which is the server's own machine or its cloud's",
                f"Correct it, or have the server's administrator name the network in {NETWORKS_VARIABLE}.",
            )


def site_login(kind: SettingsKind[Any], *variables: str) -> LoginKind:
    """Of a site that is reached through a machine that one logs in to, with the key that was sent.

    Args:
        kind: of its settings.
        variables: others that are sent beside the login's host key.
    """
    name = f"TRAINMASTER_{kind.provider.upper()}"

    def collect(place: ProviderPlace) -> SentSettings:
        return sent_of_site(kind.read(place.root, place.environ), kind.provider, {}, place.root)

    def check(place: ProviderPlace) -> None:
        # Else its commands would run on this machine, or with keys of this machine.
        settings: LoginSettings[Any] = kind.read(place.root, place.environ)
        if not settings.login:
            raise UsageError(
                f"{settings.file} names no `login`: its commands would run on the server, as its user",
                "Write `login: user@host`, and `key`, the file of a private key.",
            )
        if not settings.key or settings.key != place.environ.get(f"{name}_KEY"):
            raise UsageError(
                f"{settings.file}: `key` is not the key that was sent with it",
                "`trainmaster team login` sends both. Keys of the server are not used for a team.",
            )
        check_address(settings.login, place)

    return LoginKind(
        collect, check, (name,), (host_key_variable(kind.provider), *variables), (f"{name}_KEY",)
    )
