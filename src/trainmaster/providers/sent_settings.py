"""`SentSettings`: what the machine that drives a run is sent so that it can use a place as its home does.

A provider whose machines may drive runs says so by a function ``sent_settings`` in its module. What is known
of machines goes with the run's record (`ProviderPlace.files_for`). Where a login can be made for one machine,
in the place of the user's own, its module has a function ``driver_login``, too.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.own_settings import shown_variable
from trainmaster.providers.plugins import PROVIDERS
from trainmaster.spec.errors import TrainmasterError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.providers.base import ProviderPlace
    from trainmaster.providers.site_settings import LoginSettings

#: Names the machine that drives, as its provider calls it; set there only.
DRIVES_VARIABLE: Final = "TRAINMASTER_DRIVES"


@dataclass(frozen=True, slots=True)
class SentSettings:
    """Settings of a place, and a login to it.

    Attributes:
        files: their text, by the variable that names each to the provider; in memory there, never on a disk.
        environ: other variables.
        words: what is sent of logins, for people, a line each.
        is_wide: a login is sent, which allows more than this run needs.
        packages: what its driver needs for the place, as pip takes it.
    """

    files: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    is_wide: bool = True
    packages: tuple[str, ...] = ()


class DriverLogin(Protocol):
    """Makes a login for one machine."""

    def make(self, cluster: str, machine: str) -> Mapping[str, str]:
        """Files as in `SentSettings`; what was made for this machine before is of no use then.

        Args:
            cluster: that the machine belongs to.
            machine: as its provider calls it.

        Raises:
            TrainmasterError: it cannot be made.
        """

    def remove(self, cluster: str, machine: str) -> None:
        """The machine drives no more.

        Raises:
            TrainmasterError: it cannot be removed now; it goes with the machine in any case.
        """


def sent_of_site(
    settings: LoginSettings[Any], provider: str, environ: Mapping[str, str], root: Path
) -> SentSettings:
    """What is sent of a site that is used on its nodes as here, or through a machine that one logs in to.

    Args:
        settings: of the home.
        provider: its name.
        environ: variables that its commands need.
        root: of the home, which has pinned the login's host key.

    Raises:
        UsageError: its machines have no key for the login.
    """
    from trainmaster.transport.base import jump_target
    from trainmaster.transport.host_keys import FILE_NAME, HostKeys

    variable, text = f"TRAINMASTER_{provider.upper()}", settings.file.read_text()
    environ = {**environ, shown_variable(provider): str(settings.file)}
    if not settings.login:
        return SentSettings({variable: text}, environ, is_wide=False)
    if settings.key_file is None:
        raise UsageError(
            f"its machines cannot log in to {settings.login} by your agent or usual keys, as this one does",
            f"Name the file of a private key as `key` in {settings.file}: it is sent to them.",
        )
    login = jump_target(settings.login, settings.key_file)
    pins = [] if login is None else HostKeys(root / FILE_NAME).pins(login)
    if pins:  # else the machine trusts whoever answers first there
        environ = {**environ, host_key_variable(provider): pins[0].key}
    key = f"{variable}_KEY"
    files = {variable: with_values(text, key=path_mark(key)), key: settings.key_file.read_text()}
    return SentSettings(files, environ, (f"the key {settings.key_file}, which opens {settings.login}",))


def host_key_variable(provider: str) -> str:
    """Names the variable with the host key, ``type base64``, that the login of a site had for its home."""
    return f"TRAINMASTER_{provider.upper()}_HOST_KEY"


def path_mark(variable: str) -> str:
    """What stands in a file that is sent for what a variable has there: the path of another one, say."""
    return f"{{{variable}}}"


def with_values(text: str, without: Iterable[str] = (), **values: str) -> str:
    r"""Settings with other values, and without some keys.

    >>> with_values("login: ada@hpc\nkey: ~/.ssh/id\nmachines: {}\n", ["login"], key="k")
    'key: k\nmachines: {}\n'
    """
    from ruamel.yaml import YAML

    yaml, written = YAML(), io.StringIO()
    told = yaml.load(text)
    for name in without:
        told.pop(name, None)
    told.update(values)
    yaml.dump(told, written)
    return written.getvalue()


def driver_login(provider: str, place: ProviderPlace) -> DriverLogin | None:
    """What makes a login for a machine; None if that of `sent_settings` is sent.

    Args:
        provider: its name.
        place: of the home.

    Raises:
        UsageError: what is missing in the settings.
    """
    found: Callable[[ProviderPlace], DriverLogin] | None = PROVIDERS.stated(provider, "driver_login")
    return None if found is None else found(place)


def remove_login(provider: str, place: ProviderPlace, cluster: str, machine: str) -> None:
    """Remove what was made for a machine; if that fails it goes with the machine."""
    with suppress(TrainmasterError):
        if login := driver_login(provider, place):
            login.remove(cluster, machine)


def sent_settings(provider: str, place: ProviderPlace) -> SentSettings | None:
    """What is sent of a provider's settings; None if its machines need nothing, or cannot drive.

    Args:
        provider: its name.
        place: of the home.

    Raises:
        UsageError: what is missing in the settings, or cannot be sent.
    """
    found: Callable[[ProviderPlace], SentSettings] | None = PROVIDERS.stated(provider, "sent_settings")
    with readable_settings(provider):
        return None if found is None else found(place)


@contextmanager
def readable_settings(provider: str) -> Iterator[None]:
    """Say in our words that a file which settings or a login name cannot be read.

    Raises:
        UsageError: which one, and why.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # a key, or a certificate, that a login names
        why = getattr(error, "strerror", None) or str(error)
        where = getattr(error, "filename", None) or f"what the login of {provider} names"
        raise UsageError(
            f"{where} cannot be read: {why}", f"Correct it, or its name in {provider}.yaml or your login."
        ) from None


def in_memory(
    texts: Mapping[str, str], environ: Mapping[str, str], made: Callable[[str], int] = os.memfd_create
) -> dict[str, str]:
    """Files of this process that other users cannot read, by the variable that names each.

    Programs that it starts find them by the same path, while it lives.

    Args:
        texts: what is in them; `path_mark` of a variable stands for the path of its file.
        environ: variables of ours for which such a mark may stand, too.
        made: an empty file in memory, for a variable.
    """
    files = {variable: made(variable) for variable in texts}
    paths = {variable: f"/proc/{os.getpid()}/fd/{file}" for variable, file in files.items()}
    own = {name: value for name, value in environ.items() if name.startswith("TRAINMASTER_")}
    for variable, text in texts.items():
        for other, value in (own | paths).items():
            text = text.replace(path_mark(other), value)
        os.fchmod(files[variable], 0o600)
        os.write(files[variable], text.encode())
    return paths
