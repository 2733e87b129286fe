"""What Slurm answers, as values. Pure.

As text: ``scontrol -o`` says the same in 22.05 and in 24.11, where its JSON has changed with each version.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from trainmaster.dataclass import dataclass, field

_FIELD: Final = re.compile(r"(?:^| )([A-Z][A-Za-z/:]*)=")
_LIMIT: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_UNSET: Final = frozenset({"", "(null)", "None", "N/A", "Unknown", "0"})


class JobPhase(StrEnum):
    """How far a job is."""

    WAITS = "WAITS"
    RUNS = "RUNS"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as ``scontrol`` tells it.

    Attributes:
        id: of it, or of the component of a heterogeneous one.
        leader: of a component, the job's own. group: number of the component.
        name, comment: as submitted, or written later.
        state: as Slurm names it, such as ``RUNNING``. reason: why it is in that.
        nodes: that it has now.
        batch: on which its script runs.
        started_at, ends_at, preempted_at: Unix seconds by Slurm's clock; 0 if unknown.
        exit_code: ``code:signal``.
    """

    id: str
    leader: str = ""
    group: str = ""
    name: str = ""
    comment: str = ""
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    batch: str = ""
    started_at: float = 0.0
    ends_at: float = 0.0
    preempted_at: float = 0.0
    exit_code: str = ""

    @property
    def phase(self) -> JobPhase:
        """How far it is."""
        if self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"):
            return JobPhase.WAITS
        if self.state in ("RUNNING", "SUSPENDED", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT"):
            return JobPhase.RUNS
        return JobPhase.ENDED


def fields(line: str) -> dict[str, str]:
    """The fields of a line of ``scontrol -o``; values may have blanks.

    >>> fields("JobId=3 JobName=a b Reason=Nodes_required_for_job_are_DOWN, or x NodeList=n[1-2]")["JobName"]
    'a b'
    """
    found = list(_FIELD.finditer(line))
    ends = [each.start() for each in found[1:]] + [len(line)]
    return {each[1]: line[each.end() : end].strip() for each, end in zip(found, ends, strict=True)}


def hostnames(written: str) -> tuple[str, ...]:
    """The nodes of a list as Slurm writes it.

    >>> hostnames("n[1-3,07-08],login,r1n[2]-ib"), hostnames("(null)")
    (('n1', 'n2', 'n3', 'n07', 'n08', 'login', 'r1n2-ib'), ())
    """
    names = list[str]()
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", _text(written)):
        before, *rest = re.split(r"\[([^\]]*)\]", part)
        found = [before]
        for spans, after in zip(rest[::2], rest[1::2], strict=True):
            found = [f"{name}{number}{after}" for name in found for number in _numbers(spans)]
        names += found
    return tuple(names)


def _numbers(spans: str) -> Iterator[str]:
    for span in spans.split(","):
        low, _, high = span.partition("-")
        yield from (f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1))


def parse_jobs(text: str) -> tuple[float, list[SlurmJob]]:
    """The time there, and every job once."""
    now, jobs = 0.0, dict[str, SlurmJob]()
    for line in text.splitlines():
        if line.startswith("now="):
            now = float(line[4:])
        elif line.startswith("JobId="):
            job = _job(fields(line))
            jobs[job.id] = job
    return now, list(jobs.values())


def parse_past(text: str) -> list[SlurmJob]:
    """Jobs that are over, of what `past_script` answers.

    >>> [(job.id, job.state, job.ends_at) for job in parse_past("7|CANCELLED by 0|0:15|1700|1800")]
    [('7', 'CANCELLED', 1800.0)]
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    jobs = [
        SlurmJob(id, state=state.split()[0], exit_code=code, started_at=_time(start), ends_at=_time(end))
        for id, state, code, start, end in rows
    ]
    return [job for job in jobs if job.phase is JobPhase.ENDED]


def _job(said: Mapping[str, str]) -> SlurmJob:
    return SlurmJob(
        id=said["JobId"],
        leader=said.get("HetJobId", ""),
        group=said.get("HetJobOffset", ""),
        name=said.get("JobName", ""),
        comment=_text(said.get("Comment", "")),
        state=said.get("JobState", "").split("+")[0],
        reason=_text(said.get("Reason", "")),
        nodes=hostnames(said.get("NodeList", "")),
        batch=_text(said.get("BatchHost", "")),
        started_at=_time(said.get("StartTime", "")),
        ends_at=_time(said.get("EndTime", "")),
        preempted_at=_time(said.get("PreemptTime", "")),
        exit_code=said.get("ExitCode", ""),
    )


def _text(value: str) -> str:
    return "" if value in _UNSET else value


def _time(value: str) -> float:
    return float(value) if value.isdecimal() else 0.0


def end_words(job: SlurmJob, node_ends: Mapping[str, str]) -> str:
    """Why a job has ended, for people.

    >>> end_words(SlurmJob("7", state="FAILED", exit_code="41:0"), {"41": "no sshd"})
    'job 7: no sshd'
    """
    code = job.exit_code.partition(":")[0]
    if job.state == "FAILED" and code in node_ends:
        return f"job {job.id}: {node_ends[code]}"
    if job.preempted_at:
        return f"job {job.id} was preempted"
    known = {
        "TIMEOUT": "its time limit is over",
        "DEADLINE": "its time limit is over",
        "PREEMPTED": "it was preempted",
        "NODE_FAIL": "Slurm has lost a node of it",
        "BOOT_FAIL": "its nodes did not boot",
        "OUT_OF_MEMORY": "it took more memory than it had asked for",
        "CANCELLED": "it was cancelled",
        "COMPLETING": "it was ended: cancelled, preempted or out of time",
        "COMPLETED": "its lease was over, or it was given back",
    }
    return f"job {job.id}: {known.get(job.state, f'it has ended ({job.state}, exit code {code or 0})')}"


# --- what there is ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Partition:
    """What a partition has.

    Attributes:
        name: its name. is_default: jobs that name none go there. is_up: it takes jobs.
        limit_s: of a job; None if there is none.
        nodes: kinds of them.
    """

    name: str
    is_default: bool = False
    is_up: bool = True
    limit_s: float | None = None
    nodes: tuple[NodeKind, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of a partition that are alike. memory_mb: of each. gpus: of each, whatever their type."""

    nodes: tuple[str, ...]
    state: str
    cpus: int
    memory_mb: int
    gpus: int = 0
    gres: str = ""
    features: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes)

    def without(self, names: Collection[str]) -> NodeKind:
        """Those that are not among these."""
        return replace(self, nodes=tuple(name for name in self.nodes if name not in names))

    @property
    def is_there(self) -> bool:
        """Whether it may be had now or later without anybody mending it."""
        return not re.match("down|drain|fail|unknown|inval|futu|plann.*down", self.state)


def parse_about(text: str) -> tuple[str, str, float]:
    r"""Version, accounts and time, of what `ABOUT` answers.

    >>> parse_about("now=5\nslurm-wlm 22.05.8\naccount=lab,teaching\n")
    ('slurm-wlm 22.05.8', 'accounts lab,teaching', 5.0)
    """
    lines = text.splitlines()
    said = dict(line.split("=", 1) for line in lines if line.startswith(("now=", "account=")))
    version = next((line for line in lines if line.lower().startswith("slurm")), "Slurm")
    accounts = said.get("account", "")
    return version, accounts and f"accounts {accounts}", float(said.get("now") or 0)


def parse_partitions(text: str) -> dict[str, Partition]:
    """Partitions by name, of what `PARTITIONS` answers."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 9:
            continue
        name, up, limit, nodes, state, cpus, memory, gres, features = parts
        plain = name.rstrip("*")
        known = found.get(plain) or Partition(plain, name.endswith("*"), up == "up", limit_seconds(limit))
        kind = NodeKind(
            hostnames(nodes), state.rstrip("*~#!%$@+^-"), _least(cpus), _least(memory), _gpus(gres), gres,
            frozenset(features.split(",")),
        )  # fmt: skip
        found[plain] = Partition(plain, known.is_default, known.is_up, known.limit_s, (*known.nodes, kind))
    return found


def limit_seconds(written: str) -> float | None:
    """A time limit as Slurm has it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS; None for no limit.

    >>> [limit_seconds(each) for each in ("15", "30:00", "04:00:00", "1-12", "1-12:00:00", "0", "infinite")]
    [900.0, 1800.0, 14400.0, 129600.0, 129600.0, None, None]
    """
    found = _LIMIT.fullmatch(written)
    if found is None:
        return None
    days, *parts = [int(each) for each in (found[1] or "0", *found.groups()[1:]) if each is not None]
    if found[1] is None and len(parts) < 3:
        parts = [0, *parts]  # it begins with minutes
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds) or None


def _least(written: str) -> int:
    return int(re.match(r"\d*", written)[0] or 0)  # type: ignore[index]


def _gpus(gres: str) -> int:
    """GPUs in a list of GRES.

    >>> _gpus("gpu:a100:2(S:0-1),gpu:t4:1,nvme:1"), _gpus("gpu:1g.10gb:7(S:0),gpu:1"), _gpus("(null)")
    (3, 8, 0)
    """
    found = re.finditer(r"(?:^|,)gpu(?::[^:,(]*[^:,(0-9][^:,(]*)?(?::(\d+))?", gres)  # a type, and how many
    return sum(int(each[1] or 1) for each in found)


def start_of(said: str) -> float | None:
    """Unix seconds at which a job would start, as ``sbatch --test-only`` says; None if it does not."""
    found = re.search(r"to start at (\d+)\b", said)
    return float(found[1]) if found else None


_FACTORS: Final = ("age", "fair share", "size", "partition", "QOS")


def rank_words(text: str, partitions: frozenset[str]) -> str:
    r"""How the jobs that wait are ranked, of what `RANKS` answers; the user's own best one with why.

    >>> said = "user=ada\n7|ada|gpu|1043|12|1000|0|31|0\n8|bob|gpu|200|200|0|0|0|0\n9|bob|cpu|1|1|0|0|0|0"
    >>> rank_words(said, {"gpu"})
    '2 jobs wait there with priority 200 to 1043, yours with 1043: age 12, fair share 1000, partition 31'

    Args:
        text: the answer.
        partitions: whose jobs count; those of all if one is not named.
    """
    user = next((line[5:] for line in text.splitlines() if line.startswith("user=")), "")
    rows = [
        row
        for line in text.splitlines()
        if len(row := line.replace(" ", "").split("|")) == 9 and row[3].isdecimal()
    ]
    rows = [row for row in rows if "" in partitions or not partitions.isdisjoint(row[2].split(","))]
    if not rows:
        return ""
    ranks = sorted({int(row[3]) for row in rows})
    words = f"{len(rows)} job{'s wait' if len(rows) > 1 else ' waits'} there with priority "
    words += " to ".join(dict.fromkeys((str(ranks[0]), str(ranks[-1]))))
    best = max((row for row in rows if row[1] == user), key=lambda row: int(row[3]), default=None)
    if best is None:
        return words
    factors = [f"{name} {value}" for name, value in zip(_FACTORS, best[4:], strict=True) if value != "0"]
    return f"{words}, yours with {best[3]}" + (f": {', '.join(factors)}" if factors else "")


def refused_words(said: str) -> str:
    """What a command of Slurm complains of, in one line."""
    lines = [
        re.sub(r"^(sbatch|squeue|scontrol|sinfo|srun): (error: )?", "", line.strip())
        for line in said.splitlines()
    ]
    kept = [line for line in lines if line and not line.startswith(("job=", "now="))]
    return "; ".join(dict.fromkeys(kept[-2:])) or "it does not say why"


def names_of(partitions: Sequence[str]) -> str:
    """For messages."""
    return ", ".join(partitions) or "none"
