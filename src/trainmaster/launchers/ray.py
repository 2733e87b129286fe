"""`RayLauncher`: a Ray of the task's own, on all members of its gang."""

from __future__ import annotations

import shlex

from trainmaster.launchers.base import Gang, Launcher, Member, not_installed

#: Beyond the two that are held, each process takes a free port: several members of several tasks may be on
#: one machine. Sockets lie below ``/tmp`` itself, as their paths must be short. What Ray says of itself is
#: in a file beside the member's log.
_START = """\
hash ray
server_log="${TRAINMASTER_METRICS%.metrics.jsonl}.ray.txt"
ray_directory="$(mktemp -d /tmp/ray.XXXXXX)"
trap 'rm -rf "$ray_directory"' EXIT
cpus=$(( $(nproc) / TRAINMASTER_RAY_MEMBERS_HERE ))
start=(
  ray start --block --node-ip-address "$TRAINMASTER_RAY_HOST" --num-cpus "$(( cpus > 0 ? cpus : 1 ))"
  --min-worker-port 0 --max-worker-port 0 --temp-dir "$ray_directory"
)
"""
_AWAIT_HEAD = """\
for _ in {1..3000}; do
  if (exec 3<>"/dev/tcp/${RAY_ADDRESS%:*}/${RAY_ADDRESS##*:}") 2>/dev/null; then break; fi
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
"""
_AWAIT_ALL = """\
import sys, time, ray
end = time.monotonic() + 300
while not ray.is_initialized():
    try:
        ray.init(log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError):
        if time.monotonic() > end:
            raise
        time.sleep(1)
while (found := sum(node["Alive"] for node in ray.nodes())) < int(sys.argv[1]):
    if time.monotonic() > end:
        sys.exit(f"{found} of {sys.argv[1]} members have joined Ray")
    time.sleep(0.2)
"""
#: Its port is open before the head is known: on a busy machine a node that comes meanwhile is sent away. Ray
#: also gives up when it has not started within 30 s. The head waits for its nodes, and says how many came.
_JOIN = """\
until "${start[@]}" --address "$RAY_ADDRESS" >"$server_log" 2>&1; do
  code=$?
  grep -qE 'No node info found for head node|node timed out during startup' "$server_log" ||
    { tail -n 20 "$server_log" >&2; exit "$code"; }
  sleep 1
done"""
_TELL = '{ code=$?; tail -n 20 "$server_log" >&2; exit "$code"; }'
_KNOWN_FAILURES = (
    (
        "hash: ray: not found",
        "Ray is not installed for the Python that ran: add `setup: pip install ray` to the experiment, "
        "or activate the virtual environment that has it before `trainmaster run`.",
    ),
    not_installed("ray", "ray"),
    (
        "members have joined Ray",
        "The log of a member that has not, or the .ray.txt beside that, shows why; members reach each other "
        "over the address of their machine.",
    ),
    (
        "Version mismatch",
        "All members need the same Ray and the same Python: let `setup` or the image name both.",
    ),
    (
        "ray.exceptions.OutOfMemoryError",
        "Ray ended a task as its machine ran out of memory: ask for more with `hardware: {memory: ...}`.",
    ),
)


#: Ray without `ray[client]` refuses the option.
_CLIENT = """\
client="--ray-client-server-port $TRAINMASTER_RAY_CLIENT_PORT"
python -c 'import grpc' 2>/dev/null || client=
"""


class RayLauncher(Launcher):
    """The first member runs Ray's head and the command; each other one adds its machine.

    ``ray.init()`` without arguments finds it by ``RAY_ADDRESS``. The command begins when all have joined.
    A machine that is lost ends the attempt: Ray would wait for one that takes its place.

    >>> gang = Gang((Member("worker", 0, "10.0.0.1", (1, 2)), Member("worker", 1, "10.0.0.2", (3, 4))))
    >>> env = RayLauncher().environment(gang, gang.members[1])
    >>> env["RAY_ADDRESS"], env["TRAINMASTER_RAY_HOST"], env["TRAINMASTER_RAY_MEMBERS_HERE"]
    ('10.0.0.1:1', '10.0.0.2', '1')
    """

    name = "ray"
    known_failures = _KNOWN_FAILURES

    def ports_per_member(self, role: str) -> int:
        """Two: of the head, and of its server for remote clients."""
        return 2

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """The one with the command."""
        return member == gang.chief

    def script(self, gang: Gang, member: Member, script: str) -> str:
        """The head around the user's script for the first member, a node of Ray for the others."""
        if member != gang.chief:
            return (
                f"{_START}"
                f"echo '{member.name} is a node of Ray: see {member.name}.ray.txt beside this log'\n"
                f"server=$$\n{_AWAIT_HEAD}{_JOIN}"
            )
        await_all = f"python -c {shlex.quote(_AWAIT_ALL)} {gang.world_size}\n" if gang.world_size > 1 else ""
        return (
            f"{_START}{_CLIENT}"
            '"${start[@]}" --head --port "${RAY_ADDRESS##*:}" --include-dashboard false '
            '$client >>"$server_log" 2>&1 &\n'
            f"server=$!\n{_AWAIT_HEAD}"
            f'if ! kill -0 "$server" 2>/dev/null; then wait "$server" || {_TELL}; fi\n'
            f"{await_all}"
            "code=0\n"
            f"bash -euo pipefail -c {shlex.quote(script)} driver || code=$?\n"
            'kill "$server" 2>/dev/null || true\n'
            "wait || true\n"
            'exit "$code"'
        )

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """Where the head is, and which part of its machine the member has."""
        chief = gang.chief
        if len(chief.ports) < 2:
            raise ValueError(f"{chief.name} needs two ports for Ray's head")
        return {
            "RAY_ADDRESS": f"{chief.host}:{chief.ports[0]}",
            "TRAINMASTER_RAY_CLIENT_PORT": str(chief.ports[1]),
            "TRAINMASTER_RAY_HOST": member.host,
            "TRAINMASTER_RAY_MEMBERS_HERE": str(gang.local_world_size(member)),
        }

    def defaults(self, gang: Gang, member: Member) -> dict[str, str]:
        """Members of one machine share the memory for objects; nothing is sent to Ray's makers."""
        here = gang.local_world_size(member)
        return {
            "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": f"{0.3 / here:.3f}",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Once the head has ended, the others would wait for its answer until they are killed.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        }
