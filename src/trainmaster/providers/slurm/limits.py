"""What a user's accounts, those above them, and their QOS, allow, where a Slurm is to enforce that. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.examining import Finding
from trainmaster.providers.slurm.answers import limit_seconds, names_of
from trainmaster.providers.slurm.billing import units_of
from trainmaster.providers.slurm.settings import SlurmMachine
from trainmaster.spec.errors import UsageError
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
#: Which of them are of TRES, such as ``cpu=8,gres/gpu=2``: no job may have more, or no jobs at one time.
_OF_TRES: Final = ("MaxTRES", *(_TOGETHER := ("MaxTRESPU", "GrpTRES")))
#: What a job has that names none, where its account has none, either.
_USUAL_QOS: Final = "normal"
_SHOWN: Final = "`sacctmgr show assoc user=$USER` shows all of yours"
_TRES: Final = re.compile(r"\d+(\.\d+)?[KMGTP]?")


@dataclass(frozen=True, slots=True)
class SlurmAllowance:
    """Of an account, or of its part for one partition, or of a QOS.

    Attributes:
        name: ``account lab``, ``QOS high``.
        qos: names of those that an account may use. usual_qos: that of its jobs which name none.
        is_first: of a QOS: what it says holds before what that of the partition does.
        above: the account above it.
        wall_s: of a job; None if it says nothing.
        tres: the most that a job may have, by the kind of limit and the TRES: ``8``, ``100G``.
        words: all of its limits; empty if there are none.
    """

    name: str
    qos: tuple[str, ...] = ()
    usual_qos: str = _USUAL_QOS
    is_first: bool = False
    above: str = ""
    wall_s: float | None = None
    tres: Mapping[tuple[str, str], str] = field(default_factory=dict)
    words: str = ""


def limits_script() -> str:
    """What is enforced, the associations of the user and of all accounts, all QOS and those of partitions."""
    shown = f"format=Account,Partition,DefaultQOS,QOS,{','.join(_ACCOUNT)}"
    return (
        "config=$(scontrol show config 2>/dev/null)\n"
        "enforced=$(printf '%s\\n' \"$config\" | sed -n 's/^AccountingStorageEnforce *= */enforce=/p')\n"
        'printf "%s\\n" "$enforced"; case $enforced in *associations*) ;; *) exit 0;; esac\n'
        "cluster=$(printf '%s\\n' \"$config\" | sed -n 's/^ClusterName *= *//p')\n"
        'associations() { sacctmgr -nP show assoc "$1" ${cluster:+cluster="$cluster"} "$2" 2>/dev/null; }\n'
        f'associations user="$(id -un)" {shown} | sort -u | sed "s/^/account=/"\n'
        'associations user= format=Account,ParentName,GrpTRES | sed "s/^/above=/"\n'
        f"sacctmgr -nP show qos format=Name,Flags,{','.join(_QOS)} 2>/dev/null | sed 's/^/qos=/'\n"
        "scontrol -a -o show partition 2>/dev/null | sed -n "
        "'s/^PartitionName=\\([^ ]*\\) .* Default=\\([^ ]*\\) QoS=\\([^ ]*\\) .*/partition=\\1|\\2|\\3/p'\n"
    )


def limit_findings(said: str, machines: Mapping[str, SlurmMachine]) -> list[Finding]:
    r"""What of an answer to `limits_script` a user should know, and what of their machines it refuses.

    >>> said = "enforce=associations,limits,qos\naccount=lab|||normal,high|4||06:00:00|gres/gpu=8|"
    >>> machine = SlurmMachine(cpus=1, memory_bytes=1, qos="low", time_limit_s=43200.0)
    >>> for each in limit_findings(said, {"gpu": machine}):
    ...     print(each.ok, each.found)
    True account lab: at most 4 jobs, 06:00:00 in time each, gres/gpu=8 in each
    False machine gpu: its QOS low is none of yours (normal, high)
    False machine gpu: its time_limit of 12 h is more than 6 h, which account lab allows
    >>> [limit_findings(said, {"m": SlurmMachine(cpus=1, memory_bytes=1, gpus=n)})[1:] == [] for n in (8, 16)]
    [True, False]
    """
    if (site := _site(said)) is None:
        return []
    found = [Finding("limits", words) for words in site.told()]
    advice = f"Mend it in slurm.yaml; {_SHOWN}."
    for name, machine in machines.items():
        wrong = site.refused(machine)
        found += [Finding("limits", f"machine {name}: {words}", ok=False, advice=advice) for words in wrong]
    return found


def refuse_over_limits(said: str, wanted: Sequence[tuple[str, SlurmMachine, int]]) -> None:
    """Refuse what its limits let wait for ever: `sbatch --test-only` looks at few of them.

    Args:
        said: answers `limits_script`.
        wanted: name, machine and number of what is to be there at one time; each a job, or a part of one.

    Raises:
        UsageError: which limit, of what.
    """
    if (site := _site(said)) is None:
        return
    for name, machine, count in wanted:
        alike = [
            (each, number)
            for _, each, number in wanted
            if all(getattr(each, key) == getattr(machine, key) for key in ("account", "qos", "partition"))
        ]
        if wrong := site.refused(machine, count, alike):
            raise UsageError(
                f"machine {name}{f', {count} of it' * (count > 1)}: {wrong[0]}",
                "Slurm would let it wait for ever. Ask for fewer machines or less of each, or for another "
                f"account or qos in slurm.yaml; {_SHOWN}.",
            )


def _site(said: str) -> _UserLimits | None:
    """What is enforced; None if nothing is, or the accounting does not answer."""
    rows, accounts = defaultdict[str, list[list[str]]](list), defaultdict[str, list[SlurmAllowance]](list)
    for kind, _, rest in (line.partition("=") for line in said.splitlines()):
        if kind == "enforce" or rest.count("|") > 1:
            rows[kind].append(rest.split("|"))
    for row in rows["account"]:
        accounts[row[0]].append(_account(row))
    enforced = frozenset(word for row in rows["enforce"] for word in row[0].split(","))
    if "associations" not in enforced or not accounts:
        return None
    return _UserLimits(
        enforced,
        dict(accounts),
        {row[0]: _qos(row) for row in rows["qos"]},
        {name: row[2] for row in rows["partition"] for name in (row[0], *[""] * (row[1] == "YES"))},
        {
            row[0]: replace(_allowance(f"account {row[0]}", row[2:], {"GrpTRES": "in all"}), above=row[1])
            for row in rows["above"]
        },
    )


@dataclass(frozen=True, slots=True)
class _UserLimits:
    """What is enforced there.

    Attributes:
        enforced: of ``limits`` and ``qos``.
        accounts: of the user; an account may have several, by partition.
        qos: all. of_partitions: the QOS of a partition; that of no name is the default.
        whole: what all users of an account may have together.
    """

    enforced: Collection[str]
    accounts: Mapping[str, Sequence[SlurmAllowance]]
    qos: Mapping[str, SlurmAllowance]
    of_partitions: Mapping[str, str]
    whole: Mapping[str, SlurmAllowance]

    def told(self) -> list[str]:
        if "limits" not in self.enforced:
            return []
        every = [each for rows in self.accounts.values() for each in rows]
        usable = dict.fromkeys(name for each in every for name in each.qos)
        every += {each.name: each for name in self.accounts for each in self._above(name)}.values()
        every += [self.qos[name] for name in sorted(usable) if name in self.qos]
        return [f"{each.name}: at most {each.words}" for each in every if each.words]

    def refused(
        self, machine: SlurmMachine, count: int = 1, alike: Sequence[tuple[SlurmMachine, int]] = ()
    ) -> list[str]:
        """What of so many machines; which row of several a job gets is not known, so none is held to these.

        ``alike``: with all that is wanted at one time and draws on the same.
        """
        account, qos = machine.account.lower(), machine.qos.lower()
        if account and account not in self.accounts:
            return [f"its account {machine.account} is none of yours ({names_of(sorted(self.accounts))})"]
        named = [account] if account else list(self.accounts)
        mine = [row for name in named for row in self.accounts[name]]
        wrong = []
        known = list(dict.fromkeys(name for each in mine for name in each.qos))
        if qos and "qos" in self.enforced and qos not in known:
            wrong.append(f"its QOS {machine.qos} is none of yours ({names_of(known)})")
        if "limits" in self.enforced and len(mine) == 1 and "," not in machine.partition:
            ranked = [*self._qos_of(machine.partition, qos or mine[0].usual_qos), mine[0]]
            wall_s, by = next(((each.wall_s, each.name) for each in ranked if each.wall_s), (None, ""))
            if wall_s and machine.time_limit_s > wall_s:
                asked, most = format_duration(machine.time_limit_s), format_duration(wall_s)
                wrong.append(f"its time_limit of {asked} is more than {most}, which {by} allows")
            ranked += self._above(account or next(iter(self.accounts)))
            wrong += dict.fromkeys(_too_many([(machine, count)], alike or [(machine, count)], ranked))
        return wrong

    def _above(self, account: str) -> list[SlurmAllowance]:
        """An account as a whole, and all above it."""
        found = list[SlurmAllowance]()
        while account in self.whole and self.whole[account] not in found:
            found.append(self.whole[account])
            account = found[-1].above
        return found

    def _qos_of(self, partition: str, qos: str) -> list[SlurmAllowance]:
        """Of a job: the first that says anything of a limit replaces the others, and the account's."""
        names = (self.of_partitions.get(partition, ""), qos)
        return sorted((self.qos[name] for name in names if name in self.qos), key=lambda q: not q.is_first)


def _too_many(
    job: Sequence[tuple[SlurmMachine, int]],
    together: Sequence[tuple[SlurmMachine, int]],
    ranked: Sequence[SlurmAllowance],
) -> Iterator[str]:
    """What there is more of than there may be. What a QOS says of that replaces what accounts do."""
    for key in dict.fromkeys(key for each in ranked for key in each.tres):
        said = [each for each in ranked if key in each.tres]
        for each in said[:1] if said[0].name.startswith("QOS") else said:
            most = each.tres[key]
            unit = most.lstrip("0123456789.")
            counted = together if key[0] in _TOGETHER else job
            asked = sum(units_of(key[1], f"1{unit}", machine) * count for machine, count in counted)
            if asked > float(most.removesuffix(unit)):
                yield f"its {key[1]} of {asked:.10g}{unit} is more than {most}, which {each.name} allows"


def _account(row: Sequence[str]) -> SlurmAllowance:
    name, partition, usual_qos, qos = row[:4]
    shown = f"account {name} in partition {partition}" if partition else f"account {name}"
    found = _allowance(shown, row[4:], _ACCOUNT)
    return replace(found, qos=tuple(filter(None, qos.split(","))), usual_qos=usual_qos or _USUAL_QOS)


def _qos(row: Sequence[str]) -> SlurmAllowance:
    found = _allowance(f"QOS {row[0]}", row[2:], _QOS)
    return replace(found, is_first="OverPartQOS" in row[1].split(","))


def _allowance(name: str, values: Sequence[str], columns: Mapping[str, str]) -> SlurmAllowance:
    limits = dict(zip(columns, values, strict=False))
    words = ", ".join(f"{value} {columns[column]}" for column, value in limits.items() if value)
    each = [(column, *one.partition("=")) for column in _OF_TRES for one in limits.get(column, "").split(",")]
    tres = {(column, kind): most for column, kind, _, most in each if _TRES.fullmatch(most)}
    return SlurmAllowance(name, wall_s=limit_seconds(limits.get("MaxWall", "")), tres=tres, words=words)
