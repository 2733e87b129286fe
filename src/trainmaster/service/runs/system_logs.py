"""`fetch_system_log`: what the operating system of a run's machine says now, asked for by a person."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from trainmaster.cluster.member_places import PLACES, read_places
from trainmaster.control.attempt.system_log import WAIT_S, put_system_log, said_here, system_log_command
from trainmaster.control.task.layout import AttemptPlace
from trainmaster.executors.telemetry.masking import SecretMask
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.runs.member_ways import check_member, find_way
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.service import Service
from trainmaster.spec.errors import NotFoundError, ProviderError

#: For a login on top of what is asked.
_LOGIN_S: Final = 30.0
#: What is asked says less.
_MOST_BYTES: Final = 1 << 20


def fetch_system_log(
    service: Service,
    run: str,
    member: str | None,
    environ: Mapping[str, str],
    *,
    is_for_others: bool = False,
) -> str:
    """Ask a machine of a run, or its provider if it does not answer; it is kept with the run if that is here.

    The values of the run's secrets are taken out.

    Args:
        service: of the home.
        run: its id. Who may use it is the caller's to decide.
        member: such as ``worker-1``, or a machine; None for the first one there is.
        environ: of the caller: credentials of the provider.
        is_for_others: who asks is not the user of this machine.

    Raises:
        NotFoundError: there is no such member or machine, or its log is unknown.
        ProviderError: it cannot be reached.
        UsageError: the value of a secret is not known here, so that it could not be taken out; or several
            clusters have a machine of that name.
        MissingPartError: there is no OpenSSH client here.
    """
    row = service.database.run_row(run)
    mask = _mask(service, row, environ)
    if capabilities_of(row["provider"]).is_here:
        check_member(service, run, member)
        machine, said = socket.gethostname(), said_here()
    else:
        machine, said = _asked(service, run, member, environ, is_for_others=is_for_others)
    said = mask.text(said)
    if not said.strip():
        raise NotFoundError(f"{machine} of {run} tells nothing of its operating system", "Look with `ssh`.")
    if (home := service.home_if_here(run)) is not None:
        places = sorted((home.run_directory(run) / "tasks").glob("*/*/*"), key=lambda at: at.stat().st_mtime)
        had_it = (at for at in reversed(places) if machine in read_places(at / PLACES).values())
        if (directory := next(had_it, places[-1] if places else None)) is not None:
            put_system_log(AttemptPlace(directory), machine, said)
    return said


def _mask(service: Service, row: Mapping[Any, Any], environ: Mapping[str, str]) -> SecretMask:
    before = service.replicas.kept_secrets(row, environ)
    team = service.of_team(row["team"])
    values = team.secrets_of(stored_recipe(row), {**before, **environ}, before)
    return SecretMask([value for each in values.values() for value in each.values()])


def _asked(
    service: Service,
    run: str,
    member: str | None,
    environ: Mapping[str, str],
    *,
    is_for_others: bool,
) -> tuple[str, str]:
    try:
        way = find_way(service, run, member, environ, patience_s=0.0, is_for_others=is_for_others)
        can = capabilities_of(way.provider)  # other machines of the run may be in other places
        command = system_log_command(is_rented=can.rents, has_own_kernel=can.has_own_kernel)
        told, error = way.ask((), command, environ, WAIT_S + _LOGIN_S, _MOST_BYTES)
        if told:
            return way.machine, told.decode(errors="replace")
        why = error.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        lost: Exception = ProviderError(f"{way.machine} of {run} cannot be asked: {why[0]}", "Is it there?")
        member = way.machine
    except subprocess.TimeoutExpired:
        lost = ProviderError(f"a machine of {run} did not answer in {WAIT_S + _LOGIN_S:.0f} s", "Try again.")
    except (NotFoundError, ProviderError) as error:
        lost = error
    for machine, said in _consoles(service, run, member, environ):
        return machine, said
    raise lost


def _consoles(
    service: Service, run: str, member: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What the provider keeps of the machines that a name may mean, also those that are gone."""
    from trainmaster.cluster.record import readable
    from trainmaster.providers.plugins import get_provider

    for record in readable(service.database.clusters_of(run), lambda _: None):
        if not capabilities_of(record.provider).console:
            continue
        for machine in reversed(record.machines):
            names = (None, machine.id, machine.seat, record.name_of(machine.seat))
            if machine.id and member in names:
                with suppress(ProviderError, NotFoundError):
                    place = service.access_to(run, environ, record.provider)
                    if said := get_provider(record.provider, place).console(record.id, machine.id):
                        yield machine.id, said
