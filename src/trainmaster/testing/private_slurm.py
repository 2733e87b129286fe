"""`PrivateSlurm`: a real Slurm of one's own: a controller, and nodes that are namespaces of this machine.

Debian has all of it (``slurm-wlm munge``). It needs root: each node is a network namespace on a bridge that
this machine is on, too, with a ``/var/tmp`` of its own. Commands find it by `PrivateSlurm.environ`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainmaster.testing.private_network import NodesServer, NoNetworkError, run
from trainmaster.testing.private_server import (
    ending_with_us,
    free_ports,
    kill_group,
    spawn,
    stay,
    wait_until,
)

_PROGRAMS: Final = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "unshare", "sshd")
_ACCOUNTING: Final = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
#: What a node has, as far as Slurm knows.
CPUS: Final = 4
MEMORY_MB: Final = 2000
GPUS: Final = 2
#: The device `/dev/null`.
_NULL: Final = (1, 3)
#: Of `scavenge`, where there is accounting.
WEIGHTS: Final = "TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.0"


class NoSlurmError(NoNetworkError):
    """There is no Slurm that could be started here."""


def check_installed() -> None:
    """Nothing if all parts are there.

    Raises:
        NoSlurmError: which part is missing.
    """
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        raise NoSlurmError(f"{', '.join(missing)} not installed (Debian: slurm-wlm munge openssh-server)")
    if os.geteuid() != 0:
        raise NoSlurmError("a Slurm of one's own needs root")


class PrivateSlurm(NodesServer):
    """See `NodesServer`.

    Args:
        nodes: how many.
        preempts_after_s: grace of jobs in the partition ``scavenge`` that others need the nodes of.
        silent_s: a node that says nothing for so long is down.
        accounting: it keeps jobs in a database (``slurmdbd`` and MariaDB, eight seconds more), and enforces
            what accounts and QOS allow.
        forgets_after_s: what has ended for so long is only there.
        ranks: jobs have a priority of several factors: `sprio`.

    Attributes:
        environ: what its commands, and `trainmaster`, are to be started with.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        preempts_after_s: int = 6,
        silent_s: int = 15,
        accounting: bool = False,
        forgets_after_s: int = 300,
        ranks: bool = False,
    ) -> None:
        super().__init__("slurm", "sl", 83, nodes)
        self._grace_s, self._silent_s = preempts_after_s, silent_s
        self._place.chmod(0o755)
        self._port, self._node_port, self._account_port, self._database_port = free_ports(4)
        self._accounting, self._forgets_after_s, self._ranks = accounting, forgets_after_s, ranks
        self.environ = {
            "SLURM_CONF": str(self._place / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }

    # --- its life ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """See `PrivateServer`."""
        check_installed()
        self._network.make()
        for name in self.names:
            (self._place / f"spool.{name}").mkdir()
            (self._place / f"var.{name}").mkdir()
            (self._place / f"var.{name}").chmod(0o1777)
        (self._place / "state").mkdir()
        key = self._place / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        (self._place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
        for number in range(GPUS):  # Slurm gives out only devices; with these nothing can be done
            os.mknod(self._place / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(*_NULL))
        (self._place / "gres.conf").write_text(
            f"Name=gpu Type=a100 File={self._place}/nvidia[0-{GPUS - 1}]\n"
        )
        (self._place / "slurm.conf").write_text("\n".join(self._configuration()) + "\n")

    def start(self) -> None:
        """See `PrivateServer`."""
        place = self._place
        self._spawn(
            "munged", "munged", "--foreground", "--force", f"--key-file={place}/munge.key",
            f"--socket={place}/munge.sock", f"--pid-file={place}/munged.pid",
            f"--log-file={place}/munged.own.log", f"--seed-file={place}/munged.seed",
        )  # fmt: skip
        self._until((place / "munge.sock").exists, "munged")
        if self._accounting:
            self._start_accounting()
        self.start_controller()
        for name in self.names:
            self.boot(name)
        self._until(lambda: self.states().count("idle") == len(self.names), "slurmctld")

    # --- what can happen to it -----------------------------------------------------------------------------

    def start_controller(self) -> None:
        """The controller runs, with all that it knew."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname c; exec "$@"', "c")
        self._spawn("ctl", *named, "slurmctld", "-D", "-f", self.environ["SLURM_CONF"])

    def stop_controller(self) -> None:
        """The controller is killed; jobs go on."""
        kill_group(self._started.pop("ctl", None))

    def boot(self, name: str) -> None:
        """A node is there, with nothing on it."""
        entered = self._network.entering(name, {self._place / f"var.{name}": "/var/tmp"})  # noqa: S108 - as ours
        self._spawn(name, *entered, "slurmd", "-D", "-N", name, "-f", self.environ["SLURM_CONF"])

    # --- what is seen --------------------------------------------------------------------------------------

    def command(self, *words: str, check: bool = True) -> str:
        """What one of Slurm's commands says."""
        return run(*words, check=check, environ=self.environ).stdout.strip()

    def states(self) -> list[str]:
        """Of each node, as ``sinfo`` names them."""
        return self.command("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()

    def jobs(self) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self.command("squeue", "-h", "-t", "PD,CF,R,S", "-o", "%A").split()

    def processes(self, name: str) -> list[int]:
        """What runs on a node, but for Slurm's own."""
        found = []
        for pid in self._network.pids(name):
            with contextlib.suppress(OSError):
                if not Path(f"/proc/{pid}/comm").read_text().startswith("slurm"):
                    found.append(pid)
        return found

    # --- private -------------------------------------------------------------------------------------------

    def _configuration(self) -> list[str]:
        place, last = self._place, len(self.names)
        return [
            "ClusterName=private", f"SlurmctldHost=c({self._network.address()})", "SlurmUser=root",
            "SlurmdUser=root",
            f"SlurmctldPort={self._port}", f"SlurmdPort={self._node_port}",
            "AuthType=auth/munge", f"AuthInfo=socket={place}/munge.sock", "CredType=cred/munge",
            f"StateSaveLocation={place}/state", f"SlurmdSpoolDir={place}/spool.%n",
            f"SlurmctldPidFile={place}/ctl.pid", f"SlurmdPidFile={place}/%n.pid",
            "SlurmdParameters=config_overrides", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "SwitchType=switch/none", "MpiDefault=none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory", "JobAcctGatherType=jobacct_gather/none",
            f"AccountingStorageType=accounting_storage/{'slurmdbd' if self._accounting else 'none'}",
            "AccountingStorageHost=127.0.0.1", f"AccountingStoragePort={self._account_port}",
            f"AccountingStoragePass={place}/munge.sock", "JobCompType=jobcomp/none", "GresTypes=gpu",
            "SlurmctldTimeout=10", f"SlurmdTimeout={self._silent_s}", "ReturnToService=2",
            f"MinJobAge={self._forgets_after_s}",
            "KillWait=30", "BatchStartTimeout=10", "InactiveLimit=0",
            "PreemptType=preempt/partition_prio", "PreemptMode=CANCEL", "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0",
            *(
                f"NodeName={name} NodeAddr={self._network.address(name)} NodeHostname={name} CPUs={CPUS} "
                f"RealMemory={MEMORY_MB} Gres=gpu:a100:{GPUS} Feature=fast State=UNKNOWN"
                for name in self.names
            ),
            f"PartitionName=main Nodes=n[1-{last}] Default=YES MaxTime=1-0 State=UP PriorityTier=10 "
            "PreemptMode=OFF",
            f"PartitionName=scavenge Nodes=n[1-{last}] MaxTime=1-0 State=UP PriorityTier=1 "
            f"PreemptMode=CANCEL GraceTime={self._grace_s}{self._accounting * f' {WEIGHTS}'}",
            *["AccountingStorageTRES=gres/gpu", "AccountingStorageEnforce=associations,limits,qos"]
            * self._accounting,
            *["PriorityType=priority/multifactor", "PriorityWeightJobSize=1000"] * self._ranks,
        ]  # fmt: skip

    def _start_accounting(self) -> None:
        place, data = self._place, self._place / "db"
        if missing := [each for each in _ACCOUNTING if shutil.which(each, path=_PATH) is None]:
            packages = "slurmdbd mariadb-server-core mariadb-client-core"
            raise NoSlurmError(f"{', '.join(missing)} not installed (Debian: {packages})")
        run("mariadb-install-db", "--user=root", f"--datadir={data}", "--skip-test-db")
        self._spawn(
            "db", "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-grant-tables",
            f"--socket={place}/db.sock", f"--port={self._database_port}", "--bind-address=127.0.0.1",
            f"--pid-file={place}/db.pid", "--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=4M",
        )  # fmt: skip
        self._until((place / "db.sock").exists, "mariadbd")
        settings = place / "slurmdbd.conf"
        settings.touch(mode=0o600)
        lines = [
            "AuthType=auth/munge", f"AuthInfo=socket={place}/munge.sock", "DbdHost=localhost",
            f"DbdPort={self._account_port}", "SlurmUser=root", "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1", f"StoragePort={self._database_port}", "StorageUser=root",
            "StorageLoc=accounts", f"PidFile={place}/dbd.pid",
        ]  # fmt: skip
        settings.write_text("\n".join(lines) + "\n")
        self._spawn("dbd", "slurmdbd", "-D")
        adds = ("sacctmgr", "-i", "add", "cluster", "private")
        self._until(lambda: "private" in self.command(*adds, check=False), "slurmdbd")

    def _spawn(self, name: str, *words: str) -> None:
        # Even an empty SLURM_JWT turns every daemon to auth/jwt, and the job that we may be in is not theirs.
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "TRAINMASTER"))
        }
        log = self._place / f"{name}.log"
        self._started[name] = spawn(ending_with_us(words), log, kept | self.environ)

    def _until(self, done: Callable[[], object], name: str) -> None:
        def failed() -> NoSlurmError:
            return NoSlurmError(f"{name} does not start:\n{self.log()}")

        wait_until(done, self._started.values(), failed)


def main() -> None:
    """A Slurm to try, until it is interrupted."""
    with PrivateSlurm() as slurm:
        has = f"{CPUS} CPUs, {MEMORY_MB} MB and {GPUS} GPUs that do nothing"
        stay(
            f"export SLURM_CONF={slurm.environ['SLURM_CONF']}\n"
            f"{len(slurm.names)} nodes of {has}; Ctrl-C ends it\n"
        )


if __name__ == "__main__":
    main()
