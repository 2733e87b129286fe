"""`DriverCredential`: how a machine that drives a run logs in to OpenStack."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.openstack.client import OpenstackClient
from trainmaster.providers.openstack.login import OpenstackLogin, login_at
from trainmaster.providers.openstack.project import base_name
from trainmaster.providers.openstack.self_deletion import LASTS, SelfDeletion
from trainmaster.providers.openstack.settings import OPENSTACK
from trainmaster.providers.own_settings import shown_variable
from trainmaster.providers.sent_settings import SentSettings, path_mark
from trainmaster.providers.team_login import LoginKind, check_address
from trainmaster.spec.errors import UsageError
from trainmaster.transport.http_calls import Send

#: The file with certificates; `OpenstackLogin` has it from clouds.yaml.
_AUTHORITIES: Final = "TRAINMASTER_OPENSTACK_CACERT"


def sent_settings(place: ProviderPlace) -> SentSettings:
    """See `SentSettings`. The login itself is `DriverCredential`'s.

    Raises:
        UsageError: there are no settings or no login, or a mistake in them.
    """
    settings, login = login_at(place.root, place.environ)
    words = (
        f"an application credential that is made for it from {login.name}: it may send what a run sends, and "
        f"make others that may do what {login.name} may; it is removed with the run, and over after "
        f"{LASTS.days} days"
    )
    if login.is_credential:
        words += f". If {login.name} may make no others, that itself is sent"
    environ = {
        shown_variable(OPENSTACK.provider): str(settings.file),
        "OS_CLIENT_SECURE_FILE": "/dev/null",  # what its image may have is another one's
    }
    files = {"TRAINMASTER_OPENSTACK": OPENSTACK.file(place.root, place.environ).read_text()}
    if login.authorities:
        files[_AUTHORITIES] = Path(login.authorities).read_text()
    return SentSettings(files, environ, (words,))


def _own_login(place: ProviderPlace) -> SentSettings:
    _, login = login_at(place.root, place.environ)
    sent = sent_settings(place)
    what = "the application credential" if login.is_credential else "the login"
    words = f"{what} {login.name} to {login.url}, with all that it may do"
    return SentSettings({**sent.files, **_clouds_of(login)}, sent.environ, (words,))


def _clouds_of(login: OpenstackLogin) -> dict[str, str]:
    """The file that has a login on another machine."""
    told = dict(login.told) | ({"cacert": path_mark(_AUTHORITIES)} if login.authorities else {})
    return {"OS_CLIENT_CONFIG_FILE": json.dumps({"clouds": {login.name: told}})}


def _check_login(place: ProviderPlace) -> None:
    """Refuse what would be read from a file of this machine."""
    if place.environ.get("OS_CLIENT_SECURE_FILE") != os.devnull:
        raise UsageError("a login to OpenStack names another file of secrets", "Leave it out.")
    _, login = login_at(place.root, place.environ)
    if login.authorities != place.environ.get(_AUTHORITIES, ""):
        raise UsageError(
            f"OpenStack: {login.name} names certificates that were not sent with it",
            "`trainmaster team login` sends what `cacert` names.",
        )
    check_address(login.url, place)


#: See `LoginKind`.
TEAM_LOGIN: Final = LoginKind(
    _own_login,
    _check_login,
    ("TRAINMASTER_OPENSTACK", "OS_CLIENT_CONFIG_FILE"),
    (shown_variable(OPENSTACK.provider), "OS_CLIENT_SECURE_FILE"),
    (_AUTHORITIES,),
)


class DriverCredential:
    """See `DriverLogin`. It is called after the machine, as all that goes with that.

    Args:
        login: of the user.
        home: its identity.
        send: carries requests; None for HTTP.
    """

    def __init__(self, login: OpenstackLogin, home: str, send: Send | None = None) -> None:
        self._login, self._home = login, home
        self._credentials = SelfDeletion(OpenstackClient(login, send))

    def make(self, cluster: str, machine: str) -> Mapping[str, str]:
        """See `DriverLogin`. A login that may make no other is sent itself."""
        if not self._credentials.may_make():
            return _clouds_of(self._login)
        return _clouds_of(self._login.by(self._credentials.make_login(self._name(cluster, machine))))

    def remove(self, cluster: str, machine: str) -> None:
        """See `DriverLogin`."""
        self._credentials.remove(self._name(cluster, machine).__eq__)

    def _name(self, cluster: str, machine: str) -> str:
        return f"{base_name(self._home, cluster)} {machine} driver"


def driver_login(place: ProviderPlace) -> DriverCredential:
    """That of a home, as its ``openstack.yaml`` says.

    Raises:
        UsageError: there are no settings or no login, or a mistake in them.
    """
    return DriverCredential(login_at(place.root, place.environ)[1], place.identity)
