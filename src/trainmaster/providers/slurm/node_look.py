"""What a `doctor` sees on nodes of a partition, by a job of some seconds on two that are free."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.providers.examining import Finding, clock_finding, scratch_finding
from trainmaster.providers.host_probe import probe_findings, probe_script
from trainmaster.providers.slurm.answers import Partition, refused_words
from trainmaster.providers.slurm.fitting import lacks
from trainmaster.providers.slurm.scripts import NODE_ENDS, Part, part_options
from trainmaster.providers.slurm.settings import SlurmSettings
from trainmaster.transport.base import Result

#: Of a partition, whose nodes are much alike; others wait for them, too.
MOST_NODES: Final = 2
_AT_ONCE_S: Final = 5
_MARK: Final = "@@trainmaster-node"


def free_nodes(part: Part, partitions: Mapping[str, Partition]) -> list[str]:
    """Some of those on which nothing runs, and that could be a machine."""
    name = part.machine.partition
    found = [
        node
        for each in partitions.values()
        if each.is_up and (each.name == name or (not name and each.is_default))
        for kind in each.nodes
        if kind.state == "idle" and not lacks(part, kind)
        for node in kind.nodes
    ]
    return found[:MOST_NODES]


def node_look_script(
    settings: SlurmSettings, part: Part, addresses: Mapping[str, str], builds: Mapping[str, str]
) -> str:
    """Each of some nodes looks at itself and at the others; given up where they are not free at once.

    Args:
        settings: of the site.
        part: asks for so many nodes.
        addresses: of the nodes, by name.
        builds: packages to look for.
    """
    lines = [
        f". /etc/profile; before() {{ :\n{settings.before.strip()}\n}}; before" if settings.before else ":",
        f"PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin scratch={shlex.quote(settings.scratch)} may=no sshd=no",
        'mkdir -p "$scratch"; made=$(mktemp -d "$scratch/tm-look-XXXXXX") && rmdir "$made" && may=yes',
        "! command -v sshd || sshd=yes",
    ]
    quiet = "{\n" + "\n".join(lines) + "\n} > /dev/null 2>&1"
    told = f'echo "{_MARK} $SLURMD_NODENAME $(date +%s) $may $sshd $(id -un)"'
    words = [
        "srun", "--quiet", "--label", f"--immediate={_AT_ONCE_S}", *part_options(part), "--time=1",
        f"--nodelist={','.join(addresses)}", "--kill-on-bad-exit=0", "--mpi=none", "--export=PATH,HOME",
        "bash", "-c", "\n".join([quiet, told, probe_script(addresses, builds)]),
    ]  # fmt: skip
    return f"date +now=%s\n{shlex.join(words)} < /dev/null\ncode=$?\ndate +then=%s\nexit $code\n"


def node_look_findings(
    done: Result, settings: SlurmSettings, nodes: Sequence[str], builds: Mapping[str, str], ahead_s: float
) -> list[Finding]:
    """What nodes have said.

    Args:
        done: of the script.
        settings: of the site.
        nodes: that were asked.
        builds: versions of CUDA by what was built for them.
        ahead_s: how far the clock of where Slurm's commands are is ahead of ours.
    """
    said, times = dict[str, list[str]](), list[float]()
    for line in done.out.splitlines():
        label, colon, text = line.partition(": ")
        if line.startswith(("now=", "then=")):
            times.append(float(line.partition("=")[2]))
        elif colon and label.strip().isdigit():
            said.setdefault(label.strip(), []).append(text)
    seen = {}
    for lines in said.values():
        told = next((line.split(maxsplit=5)[1:] for line in lines if line.startswith(_MARK)), [])
        if len(told) == 5:
            seen[told[0]] = (told[1:], Result(0, "\n".join(lines), done.err))
    if not seen:
        words = refused_words(done.err or done.out) or "it says nothing"
        return [Finding("nodes", f"{', '.join(nodes)}: not looked at: {words}")]
    found = list[Finding]()
    for name, ((there_s, may, sshd, user), answer) in seen.items():
        when = min(max(float(there_s), times[0]), times[-1])
        found += [
            scratch_finding(name, user, may == "yes", settings.scratch, settings.file.name),
            clock_finding(float(there_s) - when + ahead_s, name),
            *probe_findings(name, list(nodes), answer, builds),
        ]
        if sshd != "yes":
            words, _, advice = NODE_ENDS["41"].partition(": ")
            found.append(Finding("sshd", f"{name}: {words}", ok=False, advice=f"{advice}.".capitalize()))
    return found
