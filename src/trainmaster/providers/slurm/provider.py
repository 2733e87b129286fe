"""`SlurmProvider`: a cluster is an allocation: one batch job, whose nodes this home logs in to while it runs.

The name of a job says whose it is and for which cluster, its comment which request it answers and until
when it is wanted. Slurm itself gives all nodes or none, and counts what they are used for: nothing is
scheduled here.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.providers.answer_cache import cached_answer
from trainmaster.providers.base import (
    CLOCKS_DIFFER_S,
    NoCapacityError,
    Node,
    NodeRequest,
    NodeState,
    ProviderPlace,
    groups_of,
    planned,
)
from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, KnownMachine
from trainmaster.providers.examining import Finding, clock_finding, refused, unseen_drivers
from trainmaster.providers.ledger_provider import LedgerProvider, ListedMachine
from trainmaster.providers.own_settings import shown_variable
from trainmaster.providers.sent_settings import SentSettings, sent_of_site
from trainmaster.providers.slurm import answers, billing, limits, scripts
from trainmaster.providers.slurm.answers import JobPhase, Partition, SlurmJob
from trainmaster.providers.slurm.billing import BillingWeights
from trainmaster.providers.slurm.fitting import refuse_misfit
from trainmaster.providers.slurm.node_look import (
    MOST_NODES,
    free_nodes,
    node_look_findings,
    node_look_script,
)
from trainmaster.providers.slurm.settings import SLURM, SlurmMachine, SlurmSettings
from trainmaster.providers.team_login import site_login
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.spec.processes import this_user
from trainmaster.spec.units import format_duration
from trainmaster.transport.base import Result

if TYPE_CHECKING:
    from trainmaster.providers.slurm.shell import SlurmShell

#: It lists a job at once, and for some minutes after its end.
_FORGOTTEN: Final = "Slurm does not list it any more"
_HINT: Final = "Look with `squeue --me` what there is, `scancel` what is unused, and remove the file."
#: What `sbatch` says of a partition that takes no jobs for a while.
_CLOSED: Final = ("inactive", "not available", "drain", "temporarily", "MaxSubmitJobs", "QOSMaxSubmit")
_UNREACHED: Final = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Zero Bytes were transmitted",
)
#: A controller that many use does not answer each time; seconds before it is asked again.
_BUSY_PAUSES_S: Final = (2.0, 5.0, 15.0)


def slurm_provider(place: ProviderPlace) -> SlurmProvider:
    """The provider of a home, as its ``slurm.yaml`` says.

    Raises:
        UsageError: there are no settings, or a mistake in them.
    """
    from trainmaster.providers.slurm.shell import SlurmShell

    settings = SLURM.read(place.root, place.environ)
    shell = SlurmShell(settings, place)
    words = [f"{name}={shlex.quote(value)} " for name, value in shell.environ.items() if name == "SLURM_CONF"]
    return SlurmProvider(settings, place, shell, way_environ="" if settings.login else "".join(words))


def sent_settings(place: ProviderPlace) -> SentSettings:
    """See `SentSettings`: nodes use Slurm's own commands, or log in where this home does.

    Raises:
        UsageError: there are no settings, or the login needs an agent.
    """
    conf = {name: place.environ[name] for name in ("SLURM_CONF",) if name in place.environ}
    return sent_of_site(SLURM.read(place.root, place.environ), SLURM.provider, conf, place.root)


#: See `LoginKind`.
TEAM_LOGIN: Final = site_login(SLURM, shown_variable(SLURM.provider))


def catalogue_of(
    root: Path, environ: Mapping[str, str], today: date, prices: Callable[[], Catalogue]
) -> Catalogue:
    """The machines of a home's settings, at the site's own prices, or by what its Slurm bills for them."""
    del prices
    settings = SLURM.read(root, environ)
    if settings.usd_per_unit:
        place = ProviderPlace(root, "", environ)
        file = place.directory(SLURM.provider) / "billing.json"

        def ask() -> BillingWeights:
            with contextlib.closing(slurm_provider(place)) as provider:
                return provider.weights()

        weights = cached_answer(
            file, BillingWeights, settings.login, billing.OLD_S, ask, partial(billing.priced, settings)
        )
        settings = billing.priced(settings, weights)
    return SLURM.offered(settings, today)


class SlurmProvider(LedgerProvider):
    """See `LedgerProvider`. Threads may share it.

    Args:
        settings: of the site.
        place: of the home.
        shell: where Slurm's commands are.
        way_environ: what a command that leads to a node begins with.
        clock: gives Unix seconds; never set back.
        sleep: between tries.

    Attributes:
        name: ``slurm``.
    """

    name = SLURM.provider

    def __init__(
        self,
        settings: SlurmSettings,
        place: ProviderPlace,
        shell: SlurmShell,
        *,
        way_environ: str = "",
        clock: Callable[[], float] = steady_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(place, _HINT, clock)
        self._settings, self._shell, self._sleep = settings, shell, sleep
        self._way_environ = way_environ
        self._script = partial(scripts.job_script, settings, self._home)

    def check_up(self) -> None:
        """Refuse a Slurm that does not answer."""
        self._partitions()

    def close(self) -> None:
        """Hang up; jobs stay as they are."""
        self._shell.close()

    # --- before anything is asked for ----------------------------------------------------------------------

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`. When each would start is a note; nothing is queued."""
        waits_s = self.queue_wait_s(requests)
        if waits_s is None or waits_s < 1:
            return []
        return [f"waits {format_duration(waits_s)} in the queue for its machines, as Slurm reckons now"]

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`: also what free nodes see of themselves and of each other."""
        said = self._answer(scripts.ABOUT)
        version, account, now = answers.parse_about(said)
        found = [
            Finding("login", f"{version} takes {account or 'this user'}"),
            clock_finding(now - self._clock(), "Slurm"),
        ]
        partitions = self._partitions()
        wanted = {each.partition for each in self._settings.machines.values()} or {""}
        for name, partition in partitions.items():
            there = [kind for kind in partition.nodes if kind.is_there]
            usable, gpus = sum(kind.count for kind in there), sum(kind.count * kind.gpus for kind in there)
            nodes = sum(kind.count for kind in partition.nodes)
            is_fine = partition.is_up and usable > 0
            words = f"{name}: {usable} of {nodes} nodes are up, with {gpus} GPUs in all"
            words += "" if partition.is_up else "; it takes no jobs now"
            is_used = name in wanted or ("" in wanted and partition.is_default)
            advice = "" if is_fine else "Name another partition in slurm.yaml, or ask the administrator."
            found.append(Finding("partition", words, is_fine or not is_used, advice))
        said, fit = self._answer(limits.limits_script()), dict[str, SlurmMachine]()
        for name, machine in self._settings.machines.items():
            (part,) = self._parts("preflight", [NodeRequest("worker", 1, name, token=name)])
            try:
                refuse_misfit(part, partitions)
                fit[name] = machine
            except UsageError as error:
                found.append(refused("machine", error))
        found += limits.limit_findings(said, self._settings.machines)
        usual = next((each.name for each in partitions.values() if each.is_default), "")
        looked_at = dict[str, str]()  # of each partition, by its machine with the most GPUs
        for name, machine in sorted(fit.items(), key=lambda each: each[1].gpus):
            with contextlib.suppress(UsageError):  # it was told
                limits.refuse_over_limits(said, [(name, machine, MOST_NODES)])
                looked_at[machine.partition or usual] = name
        for name in looked_at.values():
            found += self._nodes_seen(name, builds, partitions, now - self._clock())
        return found if any(each.what == "driver" for each in found) else found + unseen_drivers(builds)

    def _nodes_seen(
        self, name: str, builds: Mapping[str, str], partitions: Mapping[str, Partition], ahead_s: float
    ) -> list[Finding]:
        """What is seen on nodes that could be some machines."""
        if self._settings.usd_per_unit or self._settings.machine(name).usd_per_hour:
            return [Finding("nodes", f"machine {name}: not looked at, as its jobs cost")]
        (part,) = self._parts("look", [NodeRequest("worker", MOST_NODES, name, token=name)])
        if not (nodes := free_nodes(part, partitions)):
            return [Finding("nodes", f"machine {name}: not looked at, as none is free now")]
        part = replace(part, request=replace(part.request, count=len(nodes)))
        done = self._run(node_look_script(self._settings, part, self._addresses(nodes), builds))
        return node_look_findings(done, self._settings, nodes, builds, ahead_s)

    def _addresses(self, nodes: Sequence[str]) -> dict[str, str]:
        """Of nodes, by their names; the name where Slurm has none."""
        lines = self._answer(scripts.address_script(nodes)).splitlines()
        addresses = dict(pair for line in lines if len(pair := line.split()) == 2)
        return {name: addresses.get(name, name) for name in nodes}

    def queue_wait_s(self, requests: Sequence[NodeRequest]) -> float | None:
        """See `Queue`: by the time limits of the jobs before it."""
        partitions, found = self._partitions(), list[float]()
        parts = self._parts("preflight", requests)
        for part in parts:  # Slurm reckons with one component at a time
            refuse_misfit(part, partitions)
            script = self._script("preflight", [part], "none", "none", "0")
            done = self._patiently(f"date +now=%s\n{scripts.test_script(script)}")
            if done.code:
                raise self._refused(done, [part])
            if start := answers.start_of(done.out + done.err):
                found.append(max(start - answers.parse_jobs(done.out)[0], 0.0))
        wanted = [(each.request.instance_type, each.machine, each.request.count) for each in parts]
        limits.refuse_over_limits(self._answer(limits.limits_script()), wanted)
        return max(found, default=None)

    def rank_words(self, requests: Sequence[NodeRequest]) -> str:
        """See `RanksJobs`: by `sprio`, where the site has the multifactor plug-in."""
        asked = frozenset(self._settings.machine(each.instance_type).partition for each in requests)
        return answers.rank_words(self._said(self._patiently(scripts.RANKS)), asked)

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`: the scripts of the jobs."""
        placeholders = ("ssh-ed25519 ${key.Public}", "${key.Private}", "${lease.Until}")
        shown = []
        for group in groups_of(requests):
            script = self._script(cluster, self._parts(cluster, group), *placeholders)
            shown.append(planned(self.name, "sbatch", {"script": script.split("\n")}))
        return shown

    def _partitions(self) -> dict[str, Partition]:
        return answers.parse_partitions(self._said(self._patiently(scripts.PARTITIONS)))

    def weights(self) -> BillingWeights:
        """What its Slurm bills."""
        return billing.parse_weights(self._said(self._patiently(billing.WEIGHTS)))

    def _patiently(self, script: str) -> Result:
        """What a script answers before anything runs: no loop asks a busy controller again."""
        for pause_s in _BUSY_PAUSES_S:
            done = self._run(script)
            if not done.code or not any(known in done.out + done.err for known in _UNREACHED):
                return done
            self._sleep(pause_s)
        return self._run(script)

    # --- asking for it -------------------------------------------------------------------------------------

    def _make(self, known: KnownCluster, request: NodeRequest, group: Sequence[NodeRequest]) -> None:
        """See `LedgerProvider`. There is one job for all that have none, a component each.

        It does not wait for the queue: machines that wait are STARTING.
        """
        cluster = known.cluster
        if not (requests := self._noted(cluster, group)):
            return
        parts, partitions = self._parts(cluster, requests), self._partitions()
        held, apart = self._apart(cluster)
        for part in parts:
            refuse_misfit(part, partitions, held)
        public = self._memory.public_key()
        private = self._host_key(cluster)
        until = str(round(self._clock() + requests[0].lease_s))
        name = self._name(cluster)
        here, there = (apart, ()) if len(parts) > 1 else ((), apart)  # a command's are of one component
        script = self._script(cluster, parts, public, scripts.encoded_key(private), until, here)
        done = self._run(scripts.submit_script(name, [each.token for each in requests], script, there))
        if done.code or "job=" not in done.out:
            raise self._refused(done, parts)
        if missing := self._noted(cluster, requests):
            raise ProviderError(
                f"Slurm does not list the job for {missing[0].role} yet", "It is looked for again."
            )

    def _noted(self, cluster: str, requests: Sequence[NodeRequest]) -> list[NodeRequest]:
        """Write down the jobs of requests; those that Slurm lists none for. An answer may have been lost."""
        _, listed = answers.parse_jobs(self._answer(scripts.look_script(self._name(cluster))))
        jobs = {mark[0]: job for job in listed if (mark := scripts.marks(job.comment))}
        before = known = self._memory.of(cluster)
        for each in requests:
            if job := jobs.get(each.token):
                ids = (f"{job.id}.{seat}" for seat in range(each.count))
                about = {"job": job.id, "leader": job.leader, "batch": ""}
                known = known.with_requests(replace(AskedMachines.of(each, ids, is_made=True), about=about))
        if known != before:
            self._memory.put(known)
        return [each for each in requests if each.token not in jobs]

    def _host_key(self, cluster: str) -> str:
        """The private half of the key that all nodes of a cluster are known by. Only inside `alone`."""
        known = self._memory.of(cluster)
        if "private" not in known.about:
            from trainmaster.transport.key_pairs import make_key_pair

            pair = make_key_pair()
            known = replace(known, about={"private": pair.private, "public": pair.public})
            self._memory.put(known)
        return known.about["private"]

    def _parts(self, cluster: str, requests: Sequence[NodeRequest]) -> list[scripts.Part]:
        return [scripts.part_of(self._settings, self._home, cluster, request) for request in requests]

    def _apart(self, cluster: str) -> tuple[list[str], list[str]]:
        """Nodes that it has, and options by which two jobs of it are never on one at the same time."""
        states = {node.id: node.state for node in self._looked(self._memory.of(cluster))}
        held, leaving = list[str](), set[str]()
        for asked, id, machine in self._memory.of(cluster).left:
            if states[id] is NodeState.LEAVING:
                leaving.add(asked.about["job"])
            elif states[id] is NodeState.READY:
                held.append(machine.where)
        apart = {"exclude": ",".join(sorted(held)), "dependency": ":".join(["afterany", *sorted(leaving)])}
        return held, [f"--{name}={value}" for name, value in apart.items() if value not in ("", "afterany")]

    def _refused(self, done: Result, parts: Sequence[scripts.Part]) -> Exception:
        """What an answer of `sbatch` means."""
        said = done.out + done.err
        words = answers.refused_words(said)
        if done.code == scripts.NO_ANSWER or any(known in said for known in _UNREACHED):
            return ProviderError(f"Slurm does not answer: {words}", "It is asked again.")
        names = [part.machine.partition or "default partition" for part in parts]
        kinds = ", ".join(part.request.instance_type for part in parts)
        if any(known.lower() in said.lower() for known in _CLOSED) and "node configuration" not in said:
            return NoCapacityError(f"Slurm takes no job of {kinds} now: {words}", "It may later.", names)
        return UsageError(
            f"Slurm refuses machine {kinds}: {words}",
            f"Mend it in {self._settings.file}: partition, account, qos, constraint, gres or time_limit. "
            "`sinfo` shows what there is, `sacctmgr show assoc user=$USER` your accounts.",
        )

    # --- looking -------------------------------------------------------------------------------------------

    def _look(self, known: KnownCluster) -> tuple[KnownCluster, dict[str, ListedMachine]]:
        """See `LedgerProvider`. A job that Slurm has forgotten has ended."""
        seen = dict[str, ListedMachine]()
        asked_of = known.asked.values()
        ids = sorted({each.about["job"] for each in asked_of if each.left or not _has_begun(each)})
        if not ids:
            return known, seen
        there, listed = answers.parse_jobs(self._answer(scripts.shown_script(ids)))
        name = self._name(known.cluster)  # a Slurm whose count began again gives its ids to jobs of others
        by_id = {job.id: job for job in listed if job.name == name}
        lost = sorted({asked.about["job"] for asked, _, _ in known.left} - by_id.keys())
        if lost:
            by_id |= {job.id: job for job in answers.parse_past(self._answer(scripts.past_script(lost)))}
        offset_s = self._clock() - there
        for asked in known.asked.values():
            job = by_id.get(asked.about["job"])
            if asked.left or _is_held_for_nothing(asked, job):
                asked = self._updated(asked, job, offset_s)
                known = known.with_requests(asked)
                if job is not None:
                    for id, each in asked.left.items():
                        way = self._way(known, asked, job, each)
                        seen[id] = replace(self._seen(job, offset_s), way=way)
        return known, seen

    def _updated(self, asked: AskedMachines, job: SlurmJob | None, offset_s: float) -> AskedMachines:
        """What is known of a request, after a look at its job."""
        id, now, left = asked.about["job"], self._clock(), asked.left
        if job is None:
            over = {key: each.ended(now, f"job {id}: {_FORGOTTEN}") for key, each in left.items()}
            return asked.with_machines(over)
        if job.phase is JobPhase.WAITS:
            return asked
        started_at = job.started_at + offset_s if job.started_at else 0.0
        left = {key: replace(each, started_at=each.started_at or started_at) for key, each in left.items()}
        if job.phase is JobPhase.ENDED:
            ended_at = job.ends_at + offset_s if job.ends_at else now
            why = answers.end_words(job, scripts.NODE_ENDS)
            return asked.with_machines({key: each.ended(ended_at, why) for key, each in left.items()})
        if not job.nodes:
            return asked
        if _has_begun(asked):
            why = f"job {id}: %s is down, and Slurm has taken it out of the job"
            lost = {key: each for key, each in left.items() if each.where not in job.nodes}
            return asked.with_machines(
                {key: each.ended(now, why % (each.where or "a node")) for key, each in lost.items()}
            )
        addresses = self._addresses(job.nodes).items()
        for (key, each), (name, address) in zip(asked.machines.items(), addresses, strict=False):
            each = replace(left.get(key, each), where=name, address=address, private_address=address)
            asked = asked.with_machines({key: each})
        batch = job.batch if job.leader in ("", job.id) else ""  # of a component Slurm says one, too
        asked = replace(asked, about={**asked.about, "batch": batch})
        # What was not wanted any more before it began:
        self._shrink(asked, [key for key in asked.machines if key not in left])
        return asked

    def _way(self, known: KnownCluster, asked: AskedMachines, job: SlurmJob, machine: KnownMachine) -> str:
        """See `Node`."""
        if self._settings.way != "srun" or not machine.where:
            return ""
        port = self._part(known, asked).port
        return scripts.way_command(self._way_environ, self._settings, job, machine.where, port)

    def _part(self, known: KnownCluster, asked: AskedMachines) -> scripts.Part:
        return self._parts(known.cluster, [NodeRequest(asked.role, 1, asked.machine, token=asked.token)])[0]

    def _seen(self, job: SlurmJob, offset_s: float) -> ListedMachine:
        """How far a machine is that has not ended."""
        if job.phase is JobPhase.WAITS:
            then = job.started_at + offset_s - self._clock()
            starts = f", starts in {format_duration(round(then, -1))} as Slurm reckons" if then > 60 else ""
            reason = f"job {job.id}: {job.reason}{starts}"
            return ListedMachine(NodeState.STARTING, reason, is_queued=bool(job.reason))
        ends_at = job.ends_at + offset_s if job.ends_at else None
        if job.preempted_at:
            return ListedMachine(NodeState.LEAVING, f"job {job.id} is preempted", ends_at or self._clock())
        if ends_at is not None and ends_at - self._clock() <= self._settings.notice_s:
            return ListedMachine(NodeState.LEAVING, f"the time limit of job {job.id} is near", ends_at)
        return ListedMachine(NodeState.READY)

    def _reached(self, node: Node, known: KnownCluster, asked: AskedMachines, machine: KnownMachine) -> Node:
        """See `LedgerProvider`."""
        part, name = self._part(known, asked), machine.where
        directory = f"{self._settings.scratch}/{part.directory}-{name}" if name else ""
        return replace(
            node,
            port=part.port,
            user=self._settings.user or this_user(),
            key=self._memory.private_key,
            zone=part.machine.partition,
            gpus=part.machine.gpus,
            host_key=known.about.get("public", ""),
            jump=self._settings.login,
            jump_key=str(self._settings.key_file or ""),
            switch=directory,
            python=self._settings.python,
            directory=f"{directory}/runtime" if directory else "",
        )

    # --- its lease -----------------------------------------------------------------------------------------

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. The nodes' own switch is renewed over SSH; this is for what reaps."""
        until = str(round(self._clock() + lease_s))
        told = {asked.about["job"]: asked.token for asked, _, _ in self._memory.of(cluster).left}
        if told:
            comments = ((job, scripts.comment(token, until)) for job, token in told.items())
            self._answer(scripts.renew_script(comments))

    def _give_back(self, known: KnownCluster, asked: AskedMachines, ids: Collection[str]) -> None:
        """See `LedgerProvider`; what is on them has ended."""
        gone = [id for id in ids if id in asked.left]
        if not gone:
            return
        left, job, leader = known.asked[asked.token], asked.about["job"], asked.about["leader"]
        others = leader != "" and any(
            each.about["leader"] == leader and each.token != asked.token and each.left
            for each in known.asked.values()
        )
        if left.left or (others and (not _has_begun(asked) or job == leader)):
            # A job that waits cannot be had in parts, and with its first component all of it goes.
            self._shrink(left, gone)
        else:
            self._answer(scripts.cancel_script([job if others else leader or job]))

    def _shrink(self, asked: AskedMachines, gone: Collection[str]) -> None:
        """End what runs on some nodes of a job, and have Slurm take them back."""
        job, batch = asked.about["job"], asked.about["batch"]
        kept = [each.where for each in asked.left.values() if each.where]
        if batch and batch not in kept:
            kept.insert(0, batch)  # its script runs there: Slurm keeps it until the end
        if ended := [where for id in gone if (where := asked.machines[id].where)]:
            self._answer(scripts.shrink_script(job, ended, kept) if kept else scripts.cancel_script([job]))

    def _end(self, known: KnownCluster) -> None:
        """See `LedgerProvider`."""
        if known.asked or known.about:
            self._answer(scripts.cancel_script(name=self._name(known.cluster)))

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. Names and comments of jobs say whose they are, and until when."""
        mine, before = scripts.prefix(self._home), self._clock() - CLOCKS_DIFFER_S
        names, over = {self._name(cluster) for cluster in known}, dict[str, int]()
        for line in self._answer(scripts.WAITING).splitlines():
            id, count, name, comment = [*line.split("|", 3), "", "", ""][:4]
            mark = scripts.marks(comment)
            if name.startswith(mine) and name not in names and mark and mark[1] < before:
                over[id] = int(count)
        if over:
            self._answer(scripts.cancel_script(over))
        return [f"{id}.{seat}" for id, count in over.items() for seat in range(count)]

    # --- private -------------------------------------------------------------------------------------------

    def _name(self, cluster: str) -> str:
        return scripts.job_name(self._home, cluster)

    def _run(self, script: str) -> Result:
        return self._shell.run(scripts.with_path(self._settings, script))

    def _answer(self, script: str) -> str:
        """What a script that must not fail has said.

        Raises:
            UsageError: there is no Slurm.
            ProviderError: it does not answer.
        """
        return self._said(self._run(script))

    def _said(self, done: Result) -> str:
        if done.code == 0:
            return done.out
        words = answers.refused_words(done.err or done.out)
        if "not found" in done.err and "slurm" not in done.err.lower():
            raise UsageError(
                f"{self._settings.login or 'this machine'} has no command of Slurm: {words}",
                f"Name where they are with `path`, or the login node with `login`, in {self._settings.file}.",
            )
        raise ProviderError(f"Slurm does not answer: {words}", "It is asked again.")


def _is_held_for_nothing(asked: AskedMachines, job: SlurmJob | None) -> bool:
    """Whether all of its machines were given back while it waited, and it has nodes now."""
    runs = job is not None and job.phase is JobPhase.RUNS
    return runs and not asked.left and not _has_begun(asked)


def _has_begun(asked: AskedMachines) -> bool:
    """Whether its job has had nodes, as far as is known."""
    return any(each.where for each in asked.machines.values())
