"""What `doctor` says of a site's limits: correct settings are never refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainmaster.providers.slurm.limits import limit_findings, limits_script, refuse_over_limits
from trainmaster.providers.slurm.settings import SlurmMachine
from trainmaster.spec.errors import UsageError

ALL = "enforce=associations,limits,qos"
LAB = "account=lab||normal|normal,long|4||06:00:00||"
QOS = "qos=normal|||||||\nqos=long||||2-00:00:00|||\nqos=part||||12:00:00|||"
PARTITIONS = "partition=main|YES|N/A\npartition=big|NO|part"
DAY_S = 86400.0


def refused(
    said: str, partition: str = "", qos: str = "", account: str = "", limit_s: float = 0.0, gres: str = ""
) -> str:
    machine = SlurmMachine(
        cpus=4, memory_bytes=8 * 2**30, partition=partition, qos=qos, account=account, time_limit_s=limit_s,
        gpus=int(gres.rpartition(":")[2] or 0), gres=gres,
    )  # fmt: skip
    return "; ".join(each.found for each in limit_findings(said, {"m": machine}) if not each.ok)


@pytest.mark.parametrize(
    ("said", "machine", "words"),
    [
        ("enforce=associations,limits,qos", {"account": "lab"}, ""),  # the accounting does not answer
        (f"{ALL}\n{LAB}", {"limit_s": DAY_S}, "more than 6 h, which account lab allows"),
        (f"enforce=associations\n{LAB}", {"limit_s": DAY_S, "qos": "x"}, ""),
        (f"enforce=associations,limits\n{LAB}", {"qos": "x"}, ""),
        (f"enforce=associations,qos\n{LAB}", {"limit_s": DAY_S}, ""),
        (f"{ALL}\n{LAB}", {"qos": "x"}, "its QOS x is none of yours (normal, long)"),
        (f"{ALL}\n{LAB}", {"account": "x"}, "its account x is none of yours (lab)"),
        (f"{ALL}\n{LAB}\n{QOS}", {"qos": "long", "limit_s": DAY_S}, ""),  # it replaces the account's
        (f"{ALL}\n{LAB}\n{QOS}", {"qos": "long", "limit_s": 3 * DAY_S}, "which QOS long allows"),
        (f"{ALL}\n{LAB.replace('|normal|', '|long|')}\n{QOS}", {"limit_s": DAY_S}, ""),
        (f"{ALL}\n{LAB}\n{QOS}\n{PARTITIONS}", {"partition": "big", "limit_s": DAY_S / 2}, ""),
        (
            f"{ALL}\n{LAB}\n{QOS}\n{PARTITIONS}",
            {"partition": "big", "limit_s": DAY_S},
            "which QOS part allows",
        ),
        (f"{ALL}\n{LAB}\n{QOS}\n{PARTITIONS}", {"partition": "main,big", "limit_s": DAY_S}, ""),
        (f"{ALL}\n{LAB}\n{QOS}\n{PARTITIONS.replace('N/A', 'part')}", {"limit_s": DAY_S / 2}, ""),
        (
            f"{ALL}\n{LAB}\n{QOS.replace('long|', 'long|OverPartQOS', 1)}\n{PARTITIONS}",
            {"partition": "big", "qos": "long", "limit_s": DAY_S},
            "",
        ),
        (f"{ALL}\n{LAB}", {"gres": "gpu:16"}, ""),
        (f"{ALL}\n{LAB}gres/gpu=8", {"gres": "gpu:16"}, "its gres/gpu of 16 is more than 8"),  # of all jobs
        (
            f"{ALL}\n{LAB[:-1]}gres/gpu=8|",
            {"gres": "gpu:16"},
            "its gres/gpu of 16 is more than 8, which account",
        ),
        (f"{ALL}\n{LAB[:-1]}gres/gpu=8|", {"gres": "gpu:8"}, ""),
        (f"{ALL}\n{LAB[:-1]}gres/gpu:v100=2|", {"gres": "gpu:v100:4"}, "its gres/gpu:v100 of 4"),
        (f"{ALL}\n{LAB[:-1]}gres/gpu:a100=2|", {"gres": "gpu:v100:4"}, ""),
        (f"{ALL}\n{LAB[:-1]}cpu=4,mem=4G|", {}, "its mem of 8G is more than 4G"),
        (f"{ALL}\n{LAB[:-1]}cpu=4,mem=8192M,node=1|", {}, ""),
        (f"{ALL}\n{LAB[:-1]}mem=8000000K|", {}, "its mem of 8388608K is more than 8000000K"),
        (f"{ALL}\n{LAB[:-1]}|cpu=2", {}, "its cpu of 4 is more than 2, which account lab allows"),
        (f"enforce=associations,qos\n{LAB[:-1]}cpu=2|", {}, ""),
        (f"{ALL}\n{LAB[:-1]}cpu=2|\n{QOS[:-1]}\nqos=normal|||||cpu=4||", {}, ""),  # it replaces the account's
        (f"{ALL}\n{LAB}\nqos=normal||||||cpu=2|", {}, "which QOS normal allows"),
        (f"{ALL}\n{LAB}\n{LAB.replace('lab|', 'lab|gpu', 1)}", {"account": "lab", "limit_s": DAY_S}, ""),
    ],
)
def test_only_what_the_site_refuses_is_wrong(said: str, machine: dict[str, object], words: str) -> None:
    """Walls where limits are enforced, names of QOS where these are; of a QOS before the account's."""
    found = refused(said, **machine)  # type: ignore[arg-type]
    assert words in found
    assert bool(words) == bool(found), found


ABOVE = "above=lab|dept|\nabove=dept|root|cpu=12\nabove=root||"


@pytest.mark.parametrize(
    ("said", "counts", "words"),
    [
        (f"{LAB}\n{ABOVE}", (3,), ""),
        (f"{LAB}\n{ABOVE}", (4,), "its cpu of 16 is more than 12, which account dept allows"),
        (f"{LAB}\n{ABOVE}", (2, 2), "its cpu of 16 is more than 12"),  # at one time
        (f"{LAB[:-1]}cpu=8|", (2, 2), ""),  # of each job
        (f"{LAB[:-1]}cpu=8|", (1, 3), "its cpu of 12 is more than 8, which account lab allows"),
        (f"{LAB[:-1]}node=2|", (3,), "its node of 3 is more than 2"),
        (f"{LAB}cpu=20\n{ABOVE}", (4,), "which account dept allows"),  # all of them hold
        (f"{LAB}\n{ABOVE}\nqos=normal|||||||cpu=40", (4,), ""),  # it replaces those of accounts
        (f"{LAB}\nabove=lab|dept|\nabove=dept|lab|", (4,), ""),  # nobody's, and it ends
    ],
)
def test_what_is_wanted_is_held_to_limits_as_a_whole(said: str, counts: tuple[int, ...], words: str) -> None:
    """Each job for itself, and all of them to what an account and those above it may have."""
    machine = SlurmMachine(cpus=4, memory_bytes=2**30)
    wanted = [("m", machine, count) for count in counts]
    if not words:
        refuse_over_limits(f"{ALL}\n{said}", wanted)
        return
    with pytest.raises(UsageError, match=words):
        refuse_over_limits(f"{ALL}\n{said}", wanted)
    refuse_over_limits(said, wanted)  # nothing is enforced


def test_an_account_with_several_rows_tells_each() -> None:
    """A site may have one for each partition."""
    rows = f"{ALL}\n{LAB}\n{LAB.replace('lab|', 'lab|gpu', 1).replace('06', '12')}"
    assert [each.found for each in limit_findings(rows, {})] == [
        "account lab: at most 4 jobs, 06:00:00 in time each",
        "account lab in partition gpu: at most 4 jobs, 12:00:00 in time each",
    ]


def test_accounts_of_other_clusters_are_not_asked_for(tmp_path: Path) -> None:
    """One accounting may serve several."""
    programs = {
        "scontrol": "case $2 in config) echo AccountingStorageEnforce = associations,limits; "
        "echo ClusterName = one ;; "
        "*) echo PartitionName=main AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE ;; esac",
        "sacctmgr": 'echo "$*"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", limits_script()], env=environ, capture_output=True, text=True, check=True
    )
    enforce, account, above, qos, partition = done.stdout.splitlines()
    assert (enforce, partition) == ("enforce=associations,limits", "partition=main|YES|N/A")
    assert above.startswith("above=-nP show assoc user= cluster=one format=Account,ParentName,")
    assert " cluster=one format=Account,Partition,DefaultQOS,QOS,MaxJobs" in account
    assert qos.startswith("qos=-nP show qos format=Name,Flags,")
