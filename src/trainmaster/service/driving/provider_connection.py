"""Check that a provider can be used from here before a run begins, and connect to it early.

This module imports little, as `preconnect` starts slow work before other modules are imported.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.plugins import get_provider, told_of_own_logins
from trainmaster.spec.errors import TrainmasterError, UsageError

if TYPE_CHECKING:
    from trainmaster.providers.base import ProviderPlace
    from trainmaster.service.open_home import OpenHome


def check_provider(provider: str, place: ProviderPlace, *, dials: bool = True) -> None:
    """Refuse to go on with a run whose provider cannot be used from here, before anything is changed.

    Args:
        provider: its name.
        place: that leads there; see `OpenHome.place`.
        dials: ask whether it answers, too.

    Raises:
        UsageError: no lab is up, no inventory, wrong settings, no credentials.
    """
    with closing(get_provider(provider, place)) as found:
        try:
            with told_of_own_logins(provider, place):
                found.check_settings()
            if dials:
                found.check_up()
        except UsageError as error:
            raise type(error)(f"provider: {provider}: {error.args[0]}", error.hint) from None


def preconnect(opened: OpenHome, provider: str, environ: Mapping[str, str]) -> None:
    """Begin slow work in threads: load the library of SSH, and connect to a provider that takes long.

    Callers that need either of them later wait for the rest of it.

    Args:
        opened: the home, as the team of the run sees it.
        provider: its name.
        environ: of the caller. What is wrong is told to who asks next.
    """

    def dial() -> None:
        with suppress(TrainmasterError):
            check_provider(provider, opened.place(provider, environ))

    def load() -> None:
        from trainmaster.transport.ssh import load_asyncssh

        with suppress(TrainmasterError):
            load_asyncssh()

    able = capabilities_of(provider)
    for needs, work in ((able.reach == "ssh", load), (able.dials_slowly, dial)):
        if needs:
            threading.Thread(target=work, name="dial", daemon=True).start()
