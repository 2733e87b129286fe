"""What a user's accounts, and the QOS of these, allow, where a site has its Slurm enforce that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainmaster.providers.examining import Finding
from trainmaster.providers.slurm.answers import limit_seconds, names_of
from trainmaster.providers.slurm.settings import SlurmMachine
from trainmaster.spec.units import format_duration

#: What `sacctmgr` is asked for, after the name, and how it is told.
_ACCOUNT: Final = {
    "MaxJobs": "jobs", "MaxSubmit": "jobs that wait or run", "MaxWall": "in time each",
    "MaxTRES": "in each", "GrpTRES": "in all",
}  # fmt: skip
_QOS: Final = {
    "MaxJobsPU": "jobs", "MaxSubmitPU": "jobs that wait or run", "MaxWall": "in time each",
    "MaxTRES": "in each", "MaxTRESPU": "in all of yours", "GrpTRES": "in all",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmAllowance:
    """Of an account or a QOS.

    Attributes:
        name: ``account lab``, ``QOS high``.
        qos: names of those that an account may use.
        wall_s: of a job; None if it says nothing.
        words: all of its limits; empty if there are none.
    """

    name: str
    qos: tuple[str, ...] = ()
    wall_s: float | None = None
    words: str = ""


def limits_script() -> str:
    """Whether limits are enforced, and the user's associations and all QOS, where there is accounting."""
    shown = f"format=Account,QOS,{','.join(_ACCOUNT)}"
    return (
        "scontrol show config 2>/dev/null | sed -n 's/^AccountingStorageEnforce *= */enforce=/p'\n"
        f'sacctmgr -nP show assoc user="$(id -un)" {shown} 2>/dev/null | sort -u | sed "s/^/account=/"\n'
        f"sacctmgr -nP show qos format=Name,{','.join(_QOS)} 2>/dev/null | sed 's/^/qos=/'\n"
    )


def limit_findings(said: str, machines: Mapping[str, SlurmMachine]) -> list[Finding]:
    r"""What of an answer to `limits_script` a user should know, and what of their machines it refuses.

    >>> said = "enforce=associations,limits,qos\naccount=lab|normal,high|4||06:00:00|gres/gpu=8|"
    >>> machine = SlurmMachine(cpus=1, memory_bytes=1, qos="low", time_limit_s=43200.0)
    >>> for each in limit_findings(said, {"gpu": machine}):
    ...     print(each.ok, each.found)
    True account lab: at most 4 jobs, 06:00:00 in time each, gres/gpu=8 in each
    False machine gpu: its QOS low is none of yours (normal, high)
    False machine gpu: its time_limit of 12 h is more than 6 h, which account lab allows
    """
    lines = [line.partition("=") for line in said.splitlines()]
    enforced = {word for key, _, rest in lines if key == "enforce" for word in rest.split(",")}
    if "associations" not in enforced:
        return []
    accounts = {row[0]: _allowance("account", row, _ACCOUNT) for key, row in _rows(lines) if key == "account"}
    allowed = {name for each in accounts.values() for name in each.qos}
    qos = {
        row[0]: _allowance("QOS", [row[0], "", *row[1:]], _QOS)
        for key, row in _rows(lines)
        if key == "qos" and row[0] in allowed
    }
    told = [*accounts.values(), *qos.values()]
    found = [Finding("limits", f"{each.name}: at most {each.words}") for each in told if each.words]
    for name, machine in machines.items():
        mine = [accounts[machine.account]] if machine.account in accounts else list(accounts.values())
        known = list(dict.fromkeys(each for one in mine for each in one.qos))
        wrong = []
        if machine.account and machine.account not in accounts:
            wrong.append(f"its account {machine.account} is none of yours ({names_of(sorted(accounts))})")
        if machine.qos and machine.qos not in known:
            wrong.append(f"its QOS {machine.qos} is none of yours ({names_of(known)})")
        limits = [*mine, *(qos[each] for each in (machine.qos,) if each in qos)] if len(mine) == 1 else []
        if over := [each for each in limits if each.wall_s and machine.time_limit_s > each.wall_s]:
            asked, most = format_duration(machine.time_limit_s), format_duration(over[0].wall_s or 0.0)
            wrong.append(f"its time_limit of {asked} is more than {most}, which {over[0].name} allows")
        advice = "Mend it in slurm.yaml; `sacctmgr show assoc user=$USER` shows all."
        found += [Finding("limits", f"machine {name}: {words}", ok=False, advice=advice) for words in wrong]
    return found


def _rows(lines: Sequence[tuple[str, str, str]]) -> list[tuple[str, list[str]]]:
    return [(key, rest.split("|")) for key, _, rest in lines if "|" in rest]


def _allowance(kind: str, row: Sequence[str], columns: Mapping[str, str]) -> SlurmAllowance:
    """Of a row: name, QOS, and the limits of `columns`."""
    limits = dict(zip(columns, row[2:], strict=False))
    words = ", ".join(f"{value} {columns[name]}" for name, value in limits.items() if value)
    wall_s = limit_seconds(limits.get("MaxWall", ""))
    return SlurmAllowance(f"{kind} {row[0]}", tuple(filter(None, row[1].split(","))), wall_s, words)
