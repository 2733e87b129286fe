"""`SparkLauncher`: a standalone Spark cluster for the time of one task."""

from __future__ import annotations

import shlex

from trainmaster.launchers.base import Gang, Launcher, Member, not_installed

_WORKER = "spark-class org.apache.spark.deploy.worker.Worker"
# Spark would write below its own installation, which may be read-only and is shared. No `exec`: the
# directory has to be removed afterwards. Its servers write a line for each thing they do: that goes to a
# file beside the member's log (no ``.log``, which would be shown as a member's).
_SCRATCH = """\
hash spark-class
export SPARK_WORKER_DIR="$(mktemp -d)"
trap 'rm -rf "$SPARK_WORKER_DIR"' EXIT
server_log="${TRAINMASTER_METRICS%.metrics.jsonl}.spark.txt"
"""
_AWAIT_MASTER = """\
for _ in {1..600}; do
  if (exec 3<>"/dev/tcp/$SPARK_MASTER_HOST/$SPARK_MASTER_PORT") 2>/dev/null; then break; fi
  sleep 0.1
done
"""
_KNOWN_FAILURES = (
    (
        "spark-class: not found",
        "Spark is not installed for the Python that ran: add `setup: pip install pyspark` to the experiment, "
        "or put Spark's bin directory on PATH.",
    ),
    not_installed("pyspark", "pyspark"),
    ("JAVA_HOME is not set", "Spark needs Java 17 or newer: `apt install default-jre-headless`."),
    (
        "Initial job has not accepted any resources",
        "No worker has the memory or the cores that the program asks for: lower spark.executor.memory, "
        "or raise `workers`.",
    ),
    (
        "java.lang.OutOfMemoryError",
        "A Java process of Spark ran out of memory: raise spark.driver.memory or spark.executor.memory.",
    ),
    (
        "All masters are unresponsive",
        "The member with the master ended first; its log, or the .spark.txt beside that, shows why.",
    ),
)


class SparkLauncher(Launcher):
    """The first member runs the master, the user's driver and a worker; each other member a worker.

    ``MASTER`` is what ``spark-submit`` reads, and so ``SparkSession.builder.getOrCreate()`` does:
    neither a command line nor a program needs to name the cluster. The driver decides alone.

    >>> gang = Gang((Member("worker", 0, "10.0.0.1", (1, 2, 3, 4)),
    ...              Member("worker", 1, "10.0.0.2", (5, 6, 7, 8))))
    >>> env = SparkLauncher().environment(gang, gang.members[1])
    >>> [env[key] for key in ("MASTER", "SPARK_LOCAL_HOSTNAME", "SPARK_WORKER_PORT")]
    ['spark://10.0.0.1:1', '10.0.0.2', '7']
    """

    name = "spark"
    known_failures = _KNOWN_FAILURES

    def ports_per_member(self, role: str) -> int:
        """Four: of the master and its web page, of the worker and its web page."""
        return 4

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """The one with the driver."""
        return member == gang.chief

    def is_dispensable(self, gang: Gang, member: Member) -> bool:
        """A worker: Spark computes again elsewhere what its executors had."""
        return member != gang.chief

    def script(self, gang: Gang, member: Member, script: str) -> str:
        """Servers around the user's script for the first member, a worker for the others.

        What the servers say is in ``MEMBER.spark.txt`` beside the member's log.
        """
        worker = f'{_WORKER} --host "$SPARK_LOCAL_IP" "$MASTER"'
        if member != gang.chief:
            return (
                f"{_SCRATCH}"
                f"echo '{member.name} runs a Spark worker: see {member.name}.spark.txt beside this log'\n"
                f"{_AWAIT_MASTER}"
                f'{worker} >"$server_log" 2>&1 || {{ code=$?; tail -n 20 "$server_log" >&2; exit "$code"; }}'
            )
        return (
            f"{_SCRATCH}"
            'spark-class org.apache.spark.deploy.master.Master >>"$server_log" 2>&1 &\n'
            f'{_AWAIT_MASTER}{worker} >>"$server_log" 2>&1 &\n'
            "code=0\n"
            f"bash -euo pipefail -c {shlex.quote(script)} driver || code=$?\n"
            "kill $(jobs -p) 2>/dev/null || true\n"
            "wait || true\n"
            'exit "$code"'
        )

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """Where the master is, and where the member's own servers listen."""
        chief = gang.chief
        if len(chief.ports) < 4 or len(member.ports) < 4:
            raise ValueError(f"{chief.name} and {member.name} need four ports each for Spark's servers")
        url = f"spark://{chief.host}:{chief.ports[0]}"
        return {
            "MASTER": url,
            "SPARK_MASTER_URL": url,
            "SPARK_MASTER_HOST": chief.host,
            "SPARK_MASTER_PORT": str(chief.ports[0]),
            "SPARK_MASTER_WEBUI_PORT": str(chief.ports[1]),
            "SPARK_WORKER_PORT": str(member.ports[2]),
            "SPARK_WORKER_WEBUI_PORT": str(member.ports[3]),
            "SPARK_LOCAL_IP": member.host,
            # By itself Spark tells others the name that this machine has for itself: they may not know it.
            "SPARK_LOCAL_HOSTNAME": member.host,
        }

    def defaults(self, gang: Gang, member: Member) -> dict[str, str]:
        """One core per worker, as it has one slot: Spark would take the whole machine for each."""
        return {"SPARK_WORKER_CORES": "1", "SPARK_DAEMON_MEMORY": "256m"}
