"""What Slurm is told: the script of an allocation, and those that run where its commands are. Pure.

An allocation is one batch job. Its script, `job.sh`, starts one step on each node. What runs in that,
`node.sh`, is an SSH server of the user's own, which lets only this home in, and a switch that ends it when
its lease is not renewed. So all that is ours on a node is in the job: it has its cores and GPUs, is counted,
and ends with it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import CLOCKS_DIFFER_S, NodeRequest
from trainmaster.providers.dead_man_switch import LEASE_FUNCTIONS
from trainmaster.providers.site_settings import KEPT_VARIABLES
from trainmaster.providers.slurm.answers import SlurmJob
from trainmaster.providers.slurm.settings import SlurmMachine, SlurmSettings
from trainmaster.spec.private_files import short_digest

#: Exit codes of a node's program, and what they mean.
NODE_ENDS: Final = {
    "41": "a node has no sshd: ask for openssh-server there, or set `path` of the shell in `before`",
    "42": "a node's `scratch` directory cannot be written to",
    "43": "a node's SSH server does not start: its port is taken, or it is not allowed there",
    "44": "the lines of `before` failed",
    "45": "when it began, no run wanted it any more",
}
#: Exit code of a script here when Slurm does not answer, or another one holds the lock.
NO_ANSWER: Final = 75
#: What lies between these is the script that `sbatch` gets.
END_OF_JOB: Final = "END_OF_JOB"
#: Below the ports that Linux hands out by itself.
_PORTS: Final = range(20000, 32000)
_MARK: Final = "trainmaster"
#: Variables of the allocation's shell that logins on its nodes have, too.
_ALSO: Final = (
    "SLURM_CONF SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_PARTITION SLURM_JOB_ACCOUNT SLURM_CPUS_ON_NODE "
    "SLURM_GPUS_ON_NODE SLURMD_NODENAME TRAINMASTER_CONTAINER_ENGINE"
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one request asks for: a component of a job.

    Attributes:
        request: as asked. machine: of the settings.
        port: of its nodes' SSH servers. directory: name of theirs on each, up to the node's name.
    """

    request: NodeRequest
    machine: SlurmMachine
    port: int
    directory: str


def job_name(home: str, cluster: str) -> str:
    """The name of all jobs of a cluster; no other cluster of any home has it.

    >>> job_name("0123456789abcdef", "r1-train")
    'tm-0123456789ab-r1-train'
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster)
    return f"{prefix(home)}{plain if plain == cluster else f'{plain}-{short_digest(cluster)}'}"


def prefix(home: str) -> str:
    """How the names of all jobs of a home begin."""
    return f"tm-{_letters(home)}-"


def _letters(home: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", home)[:12]


def comment(token: str, until: str) -> str:
    """What stands beside a job's name: which request it answers, and until when it is wanted (Unix seconds).

    >>> marks(comment("worker-0", "1700000000"))
    ('worker-0', 1700000000.0)
    """
    return f"{_MARK}:{token}:{until}"


def marks(said: str) -> tuple[str, float] | None:
    """Token and lease of a job's comment; None if it is none of ours."""
    found = re.fullmatch(rf"{_MARK}:(\S*):(\d+)(?:\.\d+)?", said.strip())
    return (found[1], float(found[2])) if found else None


def part_of(settings: SlurmSettings, home: str, cluster: str, request: NodeRequest) -> Part:
    """What a request comes to. The same request gets the same port, and the same directory.

    Raises:
        UsageError: the settings have no such machine.
    """
    digest = hashlib.sha256(f"{home} {cluster} {request.token}".encode()).digest()
    port = _PORTS[int.from_bytes(digest[:4], "big") % len(_PORTS)]
    directory = f"tm-slurm-{_letters(home)}-{digest.hex()[:12]}"
    return Part(request, settings.machine(request.instance_type), port, directory)


def part_options(part: Part) -> list[str]:
    """Of `sbatch`, for one component.

    >>> machine = SlurmMachine(partition="gpu", cpus=4, memory_bytes=8 * 10**9, gpus=2, time_limit_s=5400)
    >>> " ".join(part_options(Part(NodeRequest("worker", 3), machine, 0, "")))
    '--nodes=3 --ntasks-per-node=1 --cpus-per-task=4 --mem=7629M --partition=gpu --gres=gpu:2 --time=90'
    """
    machine = part.machine
    given = {
        "nodes": part.request.count,
        "ntasks-per-node": 1,
        "cpus-per-task": machine.cpus,
        "mem": f"{machine.memory_bytes >> 20}M",
        "partition": machine.partition,
        "gres": machine.gres or (f"gpu:{machine.gpus}" if machine.gpus and not machine.gpus_per_node else ""),
        "gpus-per-node": machine.gpus_per_node,
        "account": machine.account,
        "qos": machine.qos,
        "constraint": machine.constraint,
        "reservation": machine.reservation,
        "time": max(round(machine.time_limit_s / 60), 1) if machine.time_limit_s else "",
    }
    return [f"--{name}={value}" for name, value in given.items() if value != ""] + list(machine.options)


def job_script(
    settings: SlurmSettings,
    home: str,
    cluster: str,
    parts: Sequence[Part],
    key: str,
    host_key: str,
    until: str,
    also: Sequence[str] = (),
) -> str:
    """The script of an allocation, of one component or several.

    Args:
        settings: of the site.
        home: whose it is.
        cluster: for which it is.
        parts: in the order of their components.
        key: public half of what is let in.
        host_key: private half of what nodes are known by, base64.
        until: Unix seconds until which it is wanted.
        also: further options, of each component.
    """
    common = ["--no-requeue", "--no-kill"]
    lines = ["#!/bin/bash"]
    for number, part in enumerate(parts):
        named = [f"--job-name={job_name(home, cluster)}", f"--comment={comment(part.request.token, until)}"]
        own = [*named, "--output=/dev/null", *common] if number == 0 else named
        lines += ["#SBATCH hetjob"] * bool(number)
        lines += [f"#SBATCH {option}" for option in (*own, *part_options(part), *also)]
    nodes = [
        f"node {shlex.quote(f'--het-group={group}' if len(parts) > 1 else '')} {number} {part.machine.cpus} "
        f"{part.directory} {part.port}"
        for group, part in enumerate(parts)
        for number in range(part.request.count)
    ]
    values = {
        "MARK": _MARK,
        "UNTIL": until,
        "DIFFERS": str(round(CLOCKS_DIFFER_S)),
        "SCRATCH": shlex.quote(settings.scratch),
        "HOME": _letters(home),
        "LEASE": str(round(parts[0].request.lease_s)),
        "KEY": shlex.quote(key),
        "HOST_KEY": host_key,
        "KEPT": KEPT_VARIABLES,
        "ALSO": _ALSO,
        "NODE": _text("node.sh").replace("@FUNCTIONS@", LEASE_FUNCTIONS),
        "BEFORE": settings.before.strip(),
        "LOGIN": "yes" if settings.before.strip() else "",
        "NODES": "\n".join(nodes),
    }
    rest = re.sub("@([A-Z_]+)@", lambda found: values[found[1]], _text("job.sh"))
    return "\n".join([*lines, rest])


def _text(file: str) -> str:
    """Of a script that lies beside this file."""
    return (resources.files("trainmaster.providers.slurm") / file).read_text("utf-8").strip()


def encoded_key(private: str) -> str:
    """As a script has it."""
    return base64.b64encode(private.encode()).decode()


# --- what runs where Slurm's commands are ------------------------------------------------------------------


def with_path(settings: SlurmSettings, script: str) -> str:
    """A script that finds Slurm's commands, and reads times as Unix seconds."""
    path = f"PATH={shlex.quote(settings.path)}:$PATH; export PATH\n" if settings.path else ""
    return f"{path}SLURM_TIME_FORMAT=%s; export SLURM_TIME_FORMAT\nexport LC_ALL=C\n{script}"


_SHOWN: Final = (
    "date +now=%s\n"
    'for id in $(echo $ids | tr " " "\\n" | sort -un); do\n'
    '  said=$(scontrol -o show job "$id" 2>&1) || case $said in\n'
    "    *[Ii]nvalid\\ [Jj]ob\\ [Ii][Dd]*) continue ;;\n"  # all else is silence, no end
    f'    *) echo "$said" >&2; exit {NO_ANSWER} ;;\n'
    '  esac\n  echo "$said"\n'
    "done\n"
)


_MINE: Final = '-u "$(id -un)"'


def _listed(name: str) -> str:
    return f"squeue -h -a -t all {_MINE} --name={shlex.quote(name)} -o %A"


def look_script(name: str) -> str:
    """Every job of a name, as `shown_script` has it. Slurm reads all jobs of the user for it."""
    return f"ids=$({_listed(name)}) || exit {NO_ANSWER}\n{_SHOWN}"


def shown_script(ids: Iterable[str]) -> str:
    """Known jobs, as ``scontrol`` tells them; first the time of that machine. Slurm reads only these."""
    return f"ids={shlex.quote(' '.join(ids))}\n{_SHOWN}"


def past_script(ids: Iterable[str]) -> str:
    """What the site's accounting, if it has any, knows of jobs that Slurm itself has forgotten."""
    fields = "JobIDRaw,State,ExitCode,Start,End"
    return f"sacct -n -P -X -j {','.join(ids)} -o {fields} 2>/dev/null\nexit 0\n"


def submit_script(name: str, tokens: Iterable[str], script: str, also: Sequence[str] = ()) -> str:
    """Submit a job unless there is one of its name and a token; one at a time: a lost answer is found."""
    looked_for = " ".join(f"-e {shlex.quote(f'{_MARK}:{token}:')}" for token in tokens)
    return (
        "umask 077; mkdir -p ~/.trainmaster-slurm && exec 9>> ~/.trainmaster-slurm/lock || exit 74\n"
        f"command -v flock > /dev/null && {{ flock -w 90 9 || exit {NO_ANSWER}; }}\n"
        f'found=$({_listed(name)}" %k") || exit {NO_ANSWER}\n'
        f'job=$(echo "$found" | grep -F -m 1 {looked_for} | cut -d " " -f 1)\n'
        f"[ -n \"$job\" ] || job=$(cd ~ && sbatch --parsable {shlex.join(also)} 9>&- <<'{END_OF_JOB}'\n"
        f"{script}\n{END_OF_JOB}\n) || exit $?\n"
        'echo "job=${job%%;*}"\n'
    )


#: Every job of this user that has not ended: id, number of nodes, name and comment.
WAITING: Final = f'squeue -h -a -t PENDING,CONFIGURING,RUNNING,SUSPENDED {_MINE} -o "%A|%D|%j|%k"\n'


def test_script(script: str) -> str:
    """When a job would start; nothing is queued."""
    return f"cd ~ && sbatch --test-only <<'{END_OF_JOB}' 2>&1\n{script}\n{END_OF_JOB}\n"


#: Who asks, and of each job that waits what its priority is made of; silence without that plug-in.
RANKS: Final = 'echo "user=$(id -un)"\nsprio -h -o "%i|%u|%r|%Y|%A|%F|%J|%P|%Q" 2>/dev/null\nexit 0\n'


def address_script(nodes: Iterable[str]) -> str:
    """The address of each node: ``name address``."""
    names = " ".join(shlex.quote(node) for node in nodes)
    return (
        f"for node in {names}; do\n"
        '  at=$(scontrol -o show node "$node" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")\n'
        '  ip=$(getent ahostsv4 "${at:-$node}" | sed -n "1s/ .*//p")\n'
        '  echo "$node ${ip:-${at:-$node}}"\n'
        "done\n"
    )


#: The time there, its version, and the accounts of this user where it has any.
ABOUT: Final = (
    'accounts=$(sacctmgr -nP show assoc user="$(id -un)" format=Account 2>/dev/null | sort -u | paste -sd,)\n'
    'date +now=%s\nsinfo --version\necho "account=$accounts"\n'
)


#: What each partition has: name, state, time limit, nodes, their state, cores, MB, GRES, features.
PARTITIONS: Final = "sinfo -h -a -o '%P|%a|%l|%N|%T|%c|%m|%G|%f'\n"


def renew_script(jobs: Iterable[tuple[str, str]]) -> str:
    """Write down until when jobs are wanted: pairs of id and comment."""
    return (
        "".join(
            f"scontrol update JobId={job} Comment={shlex.quote(said)} 2>/dev/null\n" for job, said in jobs
        )
        + "exit 0\n"
    )


def cancel_script(jobs: Iterable[str] = (), name: str = "") -> str:
    """End jobs, by id, or all of a name; USR2 has nodes tidied up first."""
    which = " ".join(jobs) or f"{_MINE} --name={shlex.quote(name)}"
    return f"timeout 1 scancel --quiet --signal=USR2 {which} 2>/dev/null\nscancel --quiet {which}\n"


def shrink_script(job: str, ended: Sequence[str], kept: Sequence[str]) -> str:
    """End the steps on some nodes of a job, and give these back, as far as Slurm takes them back singly."""
    nodes = "|".join(ended)
    steps = (
        f"squeue -h -s -j {job} -o '%i %N' | grep -E ' ({nodes})$' | grep -v batch | cut -d ' ' -f 1 | "
        "while read -r step; do scancel --quiet --signal=USR2 $step; scancel --quiet $step; done\n"
    )
    return f"{steps}scontrol update JobId={job} NodeList={','.join(kept)} > /dev/null 2>&1\nexit 0\n"


def way_command(environ: str, settings: SlurmSettings, job: SlurmJob, node: str, port: int) -> str:
    """A command that leads to a node's SSH server by a step of its allocation."""
    path = f"PATH={shlex.quote(settings.path)}:$PATH " if settings.path else ""
    group = [f"--het-group={job.group}"] if job.leader else []
    # Slurm does not end a step whose `srun` was killed: the server's hanging up must.
    relay = f"exec 3<>/dev/tcp/127.0.0.1/{port} || exit 1; {{ cat <&3; kill $$; }} & exec cat >&3"
    words = [
        "srun", f"--jobid={job.leader or job.id}", *group, "--overlap", "--quiet",
        "--unbuffered", "--nodes=1", "--ntasks=1",
        "--cpus-per-task=1", "--mem=0", "--gres=none", "--mpi=none", f"--nodelist={node}",
        "--export=PATH",  # nothing else of ours is there for others to read
        "bash", "-c", relay,
    ]  # fmt: skip
    return f"{environ}{path}exec {shlex.join(words)}"
