"""What Slurm says, as of 22.05 and 24.11, and what it is told."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from trainmaster.providers.base import NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, MachineLedger
from trainmaster.providers.examining import Finding
from trainmaster.providers.slurm import answers, billing, scripts, shell
from trainmaster.providers.slurm.answers import JobPhase
from trainmaster.providers.slurm.fitting import refuse_misfit
from trainmaster.providers.slurm.provider import SlurmProvider, catalogue_of
from trainmaster.providers.slurm.settings import SLURM, SlurmMachine, SlurmSettings
from trainmaster.providers.slurm.shell import SlurmShell
from trainmaster.spec.errors import ProviderError, RecipeError, UsageError
from trainmaster.transport.base import Result

#: Of 22.05, with SLURM_TIME_FORMAT=%s.
RUNNING = (
    "JobId=3 JobName=tm-a UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=42 Nice=0 "
    "Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=0 BatchFlag=1 "
    "ExitCode=0:0 RunTime=00:00:03 TimeLimit=1-00:00:00 TimeMin=N/A SubmitTime=1795706667 "
    "StartTime=1795706668 EndTime=1795793068 Deadline=N/A SuspendTime=None SecsPreSuspend=0 Partition=main "
    "AllocNode:Sid=localhost:9598 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1,3] BatchHost=n1 "
    "NumNodes=2 NumCPUs=2 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=4000M,node=2,billing=2 "
    "Socks/Node=* NtasksPerN:B:S:C=1:0:*:* Features=(null) Command=/home/a b/j.sh WorkDir=/tmp "
    "Comment=trainmaster:worker-0:1795710000 StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power="
)
#: Of 24.11: more fields, a range where it waits, a reason with more words.
WAITING = (
    "JobId=812 JobName=tm-b UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A Priority=1 Nice=0 "
    "Account=physics QOS=normal JobState=PENDING Reason=Nodes_required_for_job_are_DOWN,_DRAINED "
    "Dependency=(null) Requeue=0 BatchFlag=1 ExitCode=0:0 SubmitTime=1795706667 EligibleTime=1795706667 "
    "StartTime=Unknown EndTime=Unknown Deadline=N/A PreemptEligibleTime=Unknown PreemptTime=None "
    "SuspendTime=None Partition=gpu NodeList= NumNodes=2-2 NumCPUs=2 ReqTRES=cpu=2,mem=2G,node=2,billing=2 "
    "AllocTRES=(null) Comment=trainmaster:ps-1:1795710000.5 TresPerNode=gres/gpu:a100:2"
)
PREEMPTED = RUNNING.replace("Deadline=N/A", "Deadline=N/A PreemptTime=1795706700")
SINFO = """\
main*|up|1-00:00:00|n[1-2]|idle|4|2000|gpu:a100:2(S:0-1)|fast,nvlink
main*|up|1-00:00:00|n3|down*|8|4000|(null)|(null)
scavenge|inact|infinite|s[1-3]|mixed~|64+|256000+|gpu:4|(null)
"""
SETTINGS = """\
login: ada@login.example.org:2222
notice: 5m
before: module load cuda
machines:
  gpu:
    {partition: main, cpus: 4, memory: 1GB, gpus: 2, gpu: A100, gres: "gpu:a100:2", account: physics,
     qos: high, constraint: nvlink, time_limit: 12h, options: [--exclusive], usd_per_hour: 1.5}
  big: {cpus: 8, memory: 3GB}
"""


def settings(tmp_path: Path, text: str = SETTINGS) -> SlurmSettings:
    (tmp_path / "slurm.yaml").write_text(text)
    return SLURM.read(tmp_path, {})


def test_slices_of_gpus_are_counted_though_their_type_begins_with_a_digit():
    """A node with seven was believed to have one, so that a machine with two was refused."""
    there = answers.parse_partitions("mig*|up|infinite|m1|idle|8|64000|gpu:1g.10gb:7(S:0)|(null)\n")
    machine = SlurmMachine(cpus=1, memory_bytes=10**9, gpus=2, gres="gpu:1g.10gb:2")
    refuse_misfit(scripts.Part(NodeRequest("worker", 1, "m"), machine, 0, ""), there)


def test_a_user_without_a_name_may_log_in_to_a_slurm(tmp_path, monkeypatch):
    """As in a container whose user is a number that its image does not know."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    found = SlurmShell(settings(tmp_path), ProviderPlace(tmp_path, "h"))
    assert found.environ["USER"] == "unknown"
    found.close()


def test_jobs_as_two_versions_tell_them():
    now, jobs = answers.parse_jobs("\n".join(["now=1795706700", RUNNING, WAITING, RUNNING]))
    assert now == 1795706700.0
    runs, waits = jobs
    assert (runs.id, runs.phase, runs.nodes, runs.batch) == ("3", JobPhase.RUNS, ("n1", "n3"), "n1")
    assert (runs.started_at, runs.ends_at, runs.preempted_at) == (1795706668.0, 1795793068.0, 0.0)
    assert scripts.marks(runs.comment) == ("worker-0", 1795710000.0)
    assert (waits.phase, waits.nodes, waits.started_at) == (JobPhase.WAITS, (), 0.0)
    assert waits.reason.startswith("Nodes_required")
    assert scripts.marks(waits.comment) == ("ps-1", 1795710000.0)
    assert scripts.marks("somebody's own") is None
    assert answers.parse_jobs(PREEMPTED)[1][0].preempted_at == 1795706700.0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            PREEMPTED.replace("JobState=RUNNING", "JobState=COMPLETED"),
            "preempted",
        ),  # as it is told: ended well
        (RUNNING.replace("JobState=RUNNING", "JobState=TIMEOUT"), "time limit"),
        (RUNNING.replace("JobState=RUNNING", "JobState=CANCELLED"), "cancelled"),
        (RUNNING.replace("JobState=RUNNING", "JobState=NODE_FAIL"), "lost a node"),
        (RUNNING.replace("JobState=RUNNING", "JobState=FAILED").replace("=0:0", "=41:0"), "no sshd"),
        (RUNNING.replace("JobState=RUNNING", "JobState=FAILED").replace("=0:0", "=7:0"), "exit code 7"),
    ],
)
def test_why_a_job_has_ended(said, words):
    (job,) = answers.parse_jobs(said)[1]
    assert job.phase is JobPhase.ENDED
    assert words in answers.end_words(job, scripts.NODE_ENDS)


def test_partitions():
    found = answers.parse_partitions(SINFO + "something else\n")
    assert found["main"].is_default
    assert found["main"].limit_s == 86400.0
    assert [(kind.count, kind.cpus, kind.gpus, kind.is_there) for kind in found["main"].nodes] == [
        (2, 4, 2, True), (1, 8, 0, False),
    ]  # fmt: skip
    assert not found["scavenge"].is_up
    assert found["scavenge"].limit_s is None
    (kind,) = found["scavenge"].nodes
    assert (kind.cpus, kind.memory_mb, kind.gpus, kind.is_there) == (64, 256000, 4, True)


@pytest.mark.parametrize(
    ("machine", "count", "words"),
    [
        ({"partition": "nope"}, 1, "no partition 'nope'"),
        ({"cpus": 6}, 1, "6 CPUs"),
        ({"memory_bytes": 10**10}, 1, "10 GB of memory"),
        ({"gpus": 3}, 1, "3 GPUs"),
        ({"constraint": "slow"}, 1, "the feature slow"),
        ({"time_limit_s": 90000.0}, 1, "time_limit"),
        ({}, 9, "for ever"),
        ({}, 0, "worker: 0 machines"),
    ],
)
def test_what_would_wait_for_ever_is_refused(machine, count, words):
    kind = SlurmMachine(**{"cpus": 1, "memory_bytes": 10**9, **machine})
    part = scripts.Part(NodeRequest("worker", count, "m"), kind, 20000, "d")
    with pytest.raises(UsageError, match=words) as refused:
        refuse_misfit(part, answers.parse_partitions(SINFO))
    assert refused.value.hint


def test_nodes_that_a_run_has_already_do_not_count():
    """One more must be another one; a node that is down may come back, but then that is the only one."""
    part = scripts.Part(NodeRequest("worker", 1, "m"), SlurmMachine(cpus=1, memory_bytes=10**9), 20000, "d")
    there = answers.parse_partitions(SINFO)
    refuse_misfit(part, there, ["n1"])
    refuse_misfit(part, there, ["n1", "n2"])
    with pytest.raises(UsageError, match="has 0, beside the 3 that the run has"):
        refuse_misfit(part, there, ["n1", "n2", "n3"])


def test_a_job_has_all_that_is_asked_for(tmp_path):
    known = settings(tmp_path)
    requests = [
        NodeRequest("worker", 2, "gpu", token="worker-0", lease_s=600.0),
        NodeRequest("ps", 1, "big", token="ps-1"),
    ]
    parts = [scripts.part_of(known, "0123456789abcdef", "r1-train", each) for each in requests]
    script = scripts.job_script(known, "0123456789abcdef", "r1-train", parts, "ssh-ed25519 AAAA", "a2V5", "7")
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    first, second = options[: options.index("hetjob")], options[options.index("hetjob") + 1 :]
    assert {
        "--job-name=tm-0123456789ab-r1-train",
        "--comment=trainmaster:worker-0:7",
        "--no-requeue",
        "--no-kill",
    } <= {*first}
    assert {"--nodes=2", "--gres=gpu:a100:2", "--account=physics", "--qos=high"} <= {*first}
    assert {"--constraint=nvlink", "--time=720", "--exclusive", "--mem=953M", "--partition=main"} <= {*first}
    assert {"--nodes=1", "--cpus-per-task=8", "--comment=trainmaster:ps-1:7"} <= {*second}
    assert not any(option.startswith(("--gres", "--partition", "--time")) for option in second)
    assert script.count("\nnode ") == 3
    assert "module load cuda" in script
    assert "@" not in script.replace('"$@"', "")
    assert parts[0].port != parts[1].port
    # What the site lets nobody change says nothing of who waits for it.
    assert '[ "$until" = 7 ] ||' in script


def test_whichever_of_two_roles_is_asked_for_first_the_job_is_the_same(tmp_path):
    worker, server = (
        NodeRequest("worker", 2, "gpu", token="worker-0"),
        NodeRequest("ps", 1, "big", token="ps-1"),
    )
    first, second = replace(worker, beside=(server,)), replace(server, beside=(worker,))
    assert first.together == second.together == [server, worker]
    provider = SlurmProvider(settings(tmp_path), ProviderPlace(tmp_path, "home"), None)
    (job,) = provider.dry_run("c", [first, second])
    assert job["parameters"]["script"].count("#SBATCH hetjob") == 1  # lines
    assert len(provider.dry_run("c", [worker, server])) == 2


def test_a_step_leads_to_a_node(tmp_path):
    known = settings(tmp_path, "path: /opt/slurm/bin\n" + SETTINGS)
    (job,) = answers.parse_jobs(RUNNING)[1]
    command = scripts.way_command("SLURM_CONF=/c ", known, job, "n3", 20001)
    assert command.startswith("SLURM_CONF=/c PATH=/opt/slurm/bin:$PATH exec srun --jobid=3 --overlap")
    assert "--export=PATH bash" in command  # no secret of the driver's gets there
    component = replace(job, id="4", leader="3", group="1")
    assert "--jobid=3 --het-group=1" in scripts.way_command("", known, component, "n3", 20001)


def test_one_token_is_one_job():
    script = scripts.submit_script("tm-a", ["ps-1", "worker-0"], "#!/bin/bash")
    assert script.index("flock") < script.index("squeue") < script.index("sbatch")
    assert "-e trainmaster:ps-1: -e trainmaster:worker-0:" in script


class Slurm:
    """Answers scripts by a word that is in them.

    Attributes:
        said: what is answered, by word; the first one holds. told: scripts so far.
    """

    def __init__(self, **said: Result) -> None:
        self.said, self.told = said, list[str]()

    def run(self, script: str) -> Result:
        """See `SlurmShell`."""
        self.told.append(script)
        return next(
            (answer for word, answer in self.said.items() if word in script), Result(0, "now=0\n", "")
        )

    def close(self) -> None:
        """Nothing is open."""


BIG = NodeRequest("worker", 1, "big", token="worker-0")
HAS_BIG = Result(0, SINFO.replace("down*", "idle"), "")


def provider_of(
    tmp_path: Path, shell: SlurmShell, pauses_s: list[float] | None = None, text: str = SETTINGS
) -> SlurmProvider:
    (tmp_path / "slurm").mkdir(exist_ok=True)
    place, slept = ProviderPlace(tmp_path, "home"), [] if pauses_s is None else pauses_s
    return SlurmProvider(settings(tmp_path, text), place, shell, clock=lambda: 100.0, sleep=slept.append)


def test_a_busy_controller_ends_no_run_before_it_begins(tmp_path):
    """It is asked again; what it refuses is not."""
    busy, pauses_s = Result(1, "", "slurm_load_partitions: Socket timed out on send/recv operation"), []
    shell = Slurm(sinfo=busy)
    provider = provider_of(tmp_path, shell, pauses_s)
    with pytest.raises(ProviderError, match="Socket timed out"):
        provider.preflight([BIG])
    assert len(shell.told) == 4
    pauses_s.clear()
    shell.said = {"sinfo": HAS_BIG, "test-only": Result(1, "", "sbatch: error: Invalid account")}
    with pytest.raises(UsageError):
        provider.preflight([BIG])
    assert not pauses_s


@pytest.mark.parametrize(
    ("said", "partitions", "words"),
    [
        ("user=ada\n", {"main"}, ""),  # no such plug-in, or nothing waits
        (
            "user=ada\n7|ada|main,gpu|9|0|0|0|0|0\n",
            {"gpu"},
            "1 job waits there with priority 9, yours with 9",
        ),
        (
            "user=ada\n7|bob|main|9|9|0|0|0|0\n8|eve|main|4|4|0|0|0|0\n",
            {"main"},
            "2 jobs wait there with priority 4 to 9",
        ),
        (
            "user=ada\n 7 | ada | main | 9 | 0 | 0 | 5 | 0 | 4 \n",
            {""},
            "1 job waits there with priority 9, yours with 9: size 5, QOS 4",
        ),
        ("user=ada\n7|bob|main|9|9|0|0|0|0\n", {"gpu"}, ""),
    ],
)
def test_what_waits_is_ranked_where_slurm_says_so(said, partitions, words):
    assert answers.rank_words(said, frozenset(partitions)) == words


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Result(75, "", ""), ProviderError),  # the lock is held
        (Result(75, "", "squeue: error: no"), ProviderError),
        (Result(1, "", "sbatch: error: Socket timed out on send/recv operation"), ProviderError),
        (Result(1, "", "sbatch: error: Invalid account"), UsageError),
    ],
)
def test_silence_is_no_refusal(tmp_path, answer, error):
    shell = Slurm(parsable=answer, sinfo=HAS_BIG)
    with pytest.raises(error) as refused:
        provider_of(tmp_path, shell).acquire("c", BIG)
    assert (type(refused.value) is ProviderError) is (error is ProviderError)


def test_what_was_submitted_before_a_loss_is_not_submitted_again(tmp_path):
    """Nor what is new beside it forgotten."""
    first = WAITING.replace("ps-1", "worker-0").replace("JobId=812", "JobId=812 HetJobId=812 HetJobOffset=0")
    shell = Slurm(
        parsable=Result(0, "job=812\n", ""),
        sinfo=HAS_BIG,
        squeue=Result(0, f"now=0\n{first}\n", ""),
    )
    provider = provider_of(tmp_path, shell)
    server = NodeRequest("ps", 1, "big", token="ps-3")
    with pytest.raises(ProviderError, match="does not list the job for ps"):
        provider.acquire("c", replace(BIG, beside=(server,)))
    (script,) = [script for script in shell.told if "parsable" in script]
    assert "worker-0" not in script
    assert [node.id for node in provider.acquire("c", BIG)] == ["812.0"]


@pytest.mark.parametrize(
    ("given_back", "words", "never"),
    [
        ("4", "scancel --quiet 4\n", "update"),  # a component: nothing else is of its job
        ("3", "update JobId=3 NodeList=n1 ", "scancel --quiet 3\n"),  # with the first one all others would go
    ],
)
def test_a_component_that_was_given_back_while_it_waited_holds_no_nodes(tmp_path, given_back, words, never):
    """It is as long as the others wait that nothing can be done: once the job runs its nodes go back."""

    def told(job: str) -> str:
        group = f"JobId={job} HetJobId=3 HetJobOffset={int(job) - 3}"
        found = RUNNING.replace("JobId=3", group).replace("worker-0", f"worker-{job}")
        return found.replace("JobName=tm-a", "JobName=tm-home-c")

    waits = [
        told(job).replace("=RUNNING", "=PENDING").replace("NodeList=n[1,3]", "NodeList=") for job in "34"
    ]
    shell = Slurm(squeue=Result(0, "\n".join(["now=0", *waits]), ""))
    provider = provider_of(tmp_path, shell)
    requests = [NodeRequest("worker", 2, "big", token=f"worker-{job}") for job in "34"]
    with provider._memory.alone("c"):
        provider._noted("c", requests)
    provider.release("c", [f"{given_back}.0", f"{given_back}.1"])
    assert not [script for script in shell.told if "scancel" in script]
    shell.said = {"show job": Result(0, "\n".join(["now=0", *map(told, "34")]), "")}
    for _ in range(2):
        states = [node.state for node in provider.nodes("c")]
        assert sorted(states) == [NodeState.GONE] * 2 + [NodeState.READY] * 2
    (ends,) = [script for script in shell.told if "scancel" in script or "update" in script]
    assert words in ends
    assert never not in ends
    assert "squeue" not in shell.told[-1], "which reads all jobs"


def test_an_id_that_slurm_has_given_to_another_job_is_not_ours(tmp_path):
    ours = RUNNING.replace("JobName=tm-a", "JobName=tm-home-c")
    shell = Slurm(squeue=Result(0, f"now=0\n{ours}", ""))
    provider = provider_of(tmp_path, shell)
    with provider._memory.alone("c"):
        provider._noted("c", [NodeRequest("worker", 2, "big", token="worker-0")])
    shell.said = {"show job": Result(0, f"now=0\n{RUNNING}", "")}
    assert [node.state for node in provider.nodes("c")] == [NodeState.GONE] * 2


def test_nothing_of_a_script_goes_on_when_time_is_up(tmp_path, monkeypatch):
    """Else `sbatch` may submit when the lock is free for the next one."""
    monkeypatch.setattr(shell, "_TIMEOUT_S", 0.5)
    here = settings(tmp_path, "machines: {big: {cpus: 8, memory: 3GB}}\n")
    with pytest.raises(ProviderError, match="not done after"):
        SlurmShell(here, ProviderPlace(tmp_path, "home")).run(f"exec 9> {tmp_path}/lock; flock 9; sleep 600")
    with (tmp_path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.parametrize("said", ["slurm_load_jobs error: Invalid job id specified", "Socket timed out"])
def test_a_job_has_ended_only_when_slurm_says_so(tmp_path, said):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("squeue", "echo 812"), ("scontrol", f"echo {said} >&2; exit 1")):
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    here = settings(tmp_path, f"path: {commands}\nmachines: {{big: {{cpus: 8, memory: 3GB}}}}\n")
    place = ProviderPlace(tmp_path, "home")
    with provider_of(tmp_path, Slurm())._memory.alone("c"):
        memory = MachineLedger(place.directory("slurm"))
        asked = AskedMachines.of(BIG, ["812.0"], is_made=True)
        memory.put(
            KnownCluster("c").with_requests(replace(asked, about={"job": "812", "leader": "", "batch": ""}))
        )
    provider = SlurmProvider(here, place, SlurmShell(here, place))
    if "nvalid" in said:
        assert [node.state for node in provider.nodes("c")] == [NodeState.GONE]
    else:
        with pytest.raises(ProviderError, match="Socket timed out"):
            provider.nodes("c")
        assert not memory.of("c").machines[0][2].ended_at


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("machines: {}\n", "names no machines"),
        ("login: a b\nmachines: {m: {cpus: 1, memory: 1GB}}\n", "user@host"),
        ("login: a@b:99999\nmachines: {m: {cpus: 1, memory: 1GB}}\n", "user@host:port"),
        ("machines: {m: {memory: 1GB}}\n", "cpus"),
        ("machines: {m: {cpus: 1, memory: 1GB, gres: 'gpu:1'}}\n", "gpus"),
        ("machines: {m: {cpus: 1, memory: 1GB, time_limit: 1m}}\n", "5m"),
        ("machines: {m: {cpus: 1, memory: 1GB, account: 'a; rm'}}\n", "one word"),
        ("machines: {m: {cpus: 1, memory: 1GB, qoss: a}}\n", "qos"),
        ("machines: {m: {cpus: 1, memory: 1GB, gpus: 1, gres: 'gpu:1', gpus_per_node: '1'}}\n", "both"),
    ],
)
def test_mistakes_in_settings_are_told(tmp_path, text, words):
    with pytest.raises((RecipeError, UsageError), match=words):
        settings(tmp_path, text)


#: As 22.05 answers; it bills 4 for 2 CPUs, 1000 MB and a GPU of `scavenge`, cut off to a whole number.
PARTITIONS = """\
PartitionName=main AllowGroups=ALL Default=YES QoS=N/A TRES=cpu=4,mem=2000M,node=1,billing=4,gres/gpu=2
PartitionName=scavenge Default=NO TRES=cpu=4,billing=8 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.0
"""


@pytest.mark.parametrize(
    ("flags", "units"),
    [("", 2 + 0.25 * 1000 / 1024 + 2), ("MAX_TRES", 2), ("MAX_TRES_GRES", 4), ("CALCULATE_RUNNING", 4.2441)],
)
def test_a_machine_costs_what_slurm_bills_for_it(flags, units):
    weights = billing.parse_weights(
        f"{PARTITIONS}PriorityFlags           = {flags}\n" if flags else PARTITIONS
    )
    machine = SlurmMachine(partition="scavenge", cpus=2, memory_bytes=1000 * 2**20, gpus=1)
    assert weights.units(machine) == pytest.approx(units, abs=1e-4)
    assert weights.units(SlurmMachine(cpus=3, memory_bytes=1)) == 3, "without weights CPUs count"
    typed = billing.BillingWeights({"p": {"GRES/gpu:a100": "5"}}, "p")
    assert typed.units(SlurmMachine(cpus=3, memory_bytes=1, gpus=2, gres="gpu:a100:2")) == 10
    assert typed.units(SlurmMachine(cpus=3, memory_bytes=1, gpus=2)) == 0
    with pytest.raises(UsageError, match="partition 'hidden'") as refused:
        weights.units(SlurmMachine(partition="hidden", cpus=3, memory_bytes=1))
    assert "main, scavenge" in refused.value.hint
    with pytest.raises(UsageError, match="none is the default"):
        replace(weights, default="").units(SlurmMachine(cpus=3, memory_bytes=1))


def test_weights_are_asked_for_once_a_day(tmp_path, monkeypatch):
    commands = tmp_path / "bin"
    commands.mkdir()
    told = tmp_path / "told"
    (commands / "scontrol").write_text(f"#!/bin/sh\necho $* >> {told}\ncat <<END\n{PARTITIONS}END\n")
    (commands / "scontrol").chmod(0o755)
    text = f"path: {commands}\nusd_per_unit: 0.5\nmachines:\n  a: {{cpus: 2, memory: 1GB}}\n"
    settings(tmp_path, text + "  b: {cpus: 2, memory: 1GB, usd_per_hour: 0}\n")
    for _ in range(2):
        offers = catalogue_of(tmp_path, {}, date(2026, 11, 26), list).offers
        assert [offer.price_usd_per_hour for offer in offers] == [1.0, 0.0]
    asked = ["-a -o show partition", "show config"]
    assert told.read_text().splitlines() == asked
    settings(tmp_path, text + "  c: {partition: new, cpus: 2, memory: 1GB}\n")
    with pytest.raises(UsageError, match="partition 'new'"):
        catalogue_of(tmp_path, {}, date(2026, 11, 26), list)
    assert told.read_text().splitlines() == asked * 2, "a partition may be new"


def test_offers_are_the_machines_of_the_settings(tmp_path):
    settings(tmp_path)
    gpu, big = SLURM.catalogue(tmp_path, {}, date(2026, 11, 26), list).offers
    assert (gpu.instance_type, gpu.price_usd_per_hour, gpu.accelerator, gpu.accelerators) == (
        "gpu",
        1.5,
        "A100",
        2,
    )
    assert (big.price_usd_per_hour, big.zone, big.vcpus) == (0.0, "", 8)


def test_doctor_says_which_machines_no_partition_has(tmp_path):
    """They would be refused when a run asks for them."""
    found = provider_of(tmp_path, Slurm()).examine({})
    (machine, *_) = [each for each in found if each.what == "machine"]
    assert not machine.ok
    assert "no partition" in machine.found


LOOKED = """\
now=200
1: @@trainmaster-node n2 620 no no ada
0: @@trainmaster-node n1 201 yes yes ada
1: python3 was loaded
0: @@trainmaster-probe {"met": ["n1"], "why": {"n2": "timed out"}, "builds": {}, "driver": "470.57.02"}
1: @@trainmaster-probe {"met": ["n1", "n2"], "why": {}, "builds": {}, "driver": ""}
then=203
"""


def looked_at(
    tmp_path: Path, answer: Result, sinfo: str = SINFO, costs: str = ""
) -> tuple[list[Finding], list[str]]:
    """What is found beside what partitions and limits say, and the scripts that lead to nodes."""
    shell = Slurm(**{"sinfo -h": Result(0, sinfo, ""), "immediate": answer})
    provider = provider_of(tmp_path, shell, text=SETTINGS.replace(", usd_per_hour: 1.5", costs))
    found = [each for each in provider.examine({"torch": "12.4"}) if each.what not in ("login", "partition")]
    return found, [each for each in shell.told if "immediate" in each]


def test_doctor_has_free_nodes_look_at_themselves_and_at_each_other(tmp_path):
    """Of each partition, those that nothing runs on, by the machine with the most GPUs."""
    found, (script,) = looked_at(tmp_path, Result(0, LOOKED, ""))
    for words in ("--nodelist=n1,n2", "--gres=gpu:a100:2", "--account=physics", "--constraint=nvlink"):
        assert words in script
    assert script.index("--time=720") < script.index("--time=1 "), "a look takes no minute"
    assert "module load cuda" in script
    wrong = {each.found: each.what for each in found if not each.ok and each.what != "machine"}
    assert wrong == {
        "n1 does not reach n2: timed out": "network",
        "n1: driver 470.57.02 is too old for torch, which is built for CUDA 12.4": "driver",
        "n2: ada may not write below /tmp": "rights",
        "n2: 5 min 17 s ahead of ours": "clock",
        "n2: a node has no sshd": "sshd",
    }
    fine = [each.found for each in found if each.ok]
    assert "n1: ada may write below /tmp" in fine
    assert "n2 reaches n1" in fine


BUSY = "srun: error: Unable to allocate resources: Requested nodes are busy"


@pytest.mark.parametrize(
    ("sinfo", "costs", "words"),
    [
        (SINFO, ", usd_per_hour: 1", "machine gpu: not looked at, as its jobs cost"),
        (SINFO.replace("idle", "mixed"), "", "machine gpu: not looked at, as none is free now"),
        (SINFO, "", f"n1, n2: not looked at: {BUSY.removeprefix('srun: error: ')}"),
    ],
)
def test_doctor_looks_at_no_nodes_that_cost_or_that_others_have(tmp_path, sinfo, costs, words):
    """That is no fault."""
    found, asked = looked_at(tmp_path, Result(1, "now=1\nthen=6\n", BUSY), sinfo, costs)
    assert [(each.found, each.ok) for each in found if each.what == "nodes"] == [(words, True)]
    assert bool(asked) is words.startswith("n1")
