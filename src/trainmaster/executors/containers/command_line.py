"""A member in a container: the command line of its engine, and what goes into its standard input.

Pure. The supervisor loads it with the first container, so nothing here is imported that costs time.
"""

from __future__ import annotations

import errno
import os
import shlex
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

#: Process 1 of a container: it makes a container end as a member without one does. The kernel gives
#: process 1 no signal that it does not ask for, and ends all others with it. So this one passes SIGTERM on,
#: once, to every process; it waits for the script, then for what the script has left: those get SIGTERM
#: and two seconds, or as long as the caller that stops it will wait.
#:
#: Enroot mounts the image by processes that run in there before this one has begun anything: they stay.
#:
#: An engine may be set to show a container the processes of its node. Then this one is not number 1, and what
#: is the script's are the descendants of its parent: every engine has one monitor per container, to which the
#: kernel gives orphans. There nothing ends with this process by itself, so it ends what is left.
#:
#: Arguments, an empty one and variables come through standard input, each ended by NUL: what was in a
#: command line or in the options of the engine could be read by others and would lie on its disk.
#: `set -m` gives the script a process group, and the signals that a background job would not get. Docker
#: would carry standard output and error separately, and mix up what comes first.
PROCESS_1 = r"""
exec 2>&1
asked= told= main= kept= top=$PPID
below() {
  local child children file
  for file in "/proc/$1/task/"*/children; do
    children=
    read -r children 2>/dev/null <"$file"
    for child in $children; do
      [[ $child == $$ || $kept == *" $child "* ]] || found+=("$child")
      below "$child"
    done
  done
}
others() { found=(-1); [[ $$ == 1 && ! $kept ]] || { found=(); below "$top"; }; }
tell() { [[ $told || ! $main ]] || { told=1; others; kill -TERM "${found[@]}"; }; }
trap 'asked=1; tell' TERM
found=()
[[ $$ != 1 ]] || { top=1; below 1; kept=${found[*]:+" ${found[*]} "}; }
set -m
while read -rd '' && [[ $REPLY ]]; do set -- "$@" "$REPLY"; done
[[ ! $asked ]] || exit 143
{ while read -rd ''; do export "$REPLY"; done 2>/dev/null; exec bash -euo pipefail "$@" </dev/null; } <&0 &
main=$!
exec 2>/dev/null </dev/null 9<> <(:)
[[ ! $asked ]] || tell
while kill -0 "$main"; do wait "$main"; done
wait "$main"
status=$?
tell
for ((turn = 0; turn < 40 || asked; turn++)); do
  others
  kill -0 "${found[@]}" || break
  read -rt 0.05 -u 9
done
[[ $$ == 1 ]] || { others; kill -KILL "${found[@]}"; }
exit "$status"
"""

#: Starts the client of a member that shares its network with others, once there is the container that holds
#: it: the first one of them makes that, and none of them may end before the others.
JOIN = r"""
engine=$1 holder=$2 image=$3 options=$4
shift 4
exec 9<> <(:)
for ((turn = 0; turn < 300; turn++)); do
  running=$("$engine" container inspect --format '{{.State.Running}}' "$holder" 2>/dev/null </dev/null || :)
  [[ $running != true ]] || exec "$@" 9<&-
  said=$("$engine" run --detach --name "$holder" $options "$image" -c "$HOLD" 2>&1 </dev/null) || :
  read -rt 0.1 -u 9 || :
done
echo "there is no network for its members: $said" >&2
exit 125
"""
#: It has no daemon: its containers are children of what starts them, and images are files.
APPTAINER = "apptainer"
#: SingularityCE's program has the same command line, and the older names of the variables.
SINGULARITY = "singularity"
APPTAINER_CACHES = ("APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR")
APPTAINER_EXEC = ("--silent", "exec", "--cleanenv", "--contain", "--pid", "--no-init", "--no-home")
#: Neither has it; to both an image is a file.
ENROOT = "enroot"
WITHOUT_DAEMON = (APPTAINER, ENROOT)
#: Starts a container of Enroot in a namespace of processes, which Enroot has not: if this is killed, all are.
#: SIGTERM goes to those that start it, then to `PROCESS_1`. What is written to `rc` is read by the image's
#: shell, in place of the image's entry point.
IN_ENROOT = r"""
program=$1 scratch=$2 image=$3 cwd=$4
shift 4
(umask 077; mkdir -p "$scratch/tmp" "$scratch/run"; cat >"$scratch/rc" <<'END') || exit 125
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
cd "$1" && shift && exec "$@"
END
options=()
while [[ $1 != -- ]]; do options+=("$1"); shift; done
export ENROOT_RUNTIME_PATH=$scratch/run ENROOT_LOGIN_SHELL=n
set -m
main=
trap '[[ ! $main ]] || kill -TERM -- "-$main"' TERM
setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc "$program" start --rc "$scratch/rc" \
  "${options[@]}" "$image" "$cwd" "${@:2}" <&0 &
main=$!
exec 2>/dev/null
while kill -0 "$main" 2>/dev/null; do wait "$main"; done
wait "$main"
"""
#: What holds the network is called like a member with this name; theirs have a number.
NETWORK = "network"
HOLD = "trap exit TERM; exec 9<> <(:); while :; do read -rt 1000 -u 9; done"

_NAME_LETTERS = 100
_KEPT_FROM_OTHERS = ("--cap-drop=ALL", "--security-opt=no-new-privileges", "--security-opt=label=disable")


def records(arguments: Sequence[str], env: Mapping[str, str]) -> bytes:
    r"""What `PROCESS_1` reads.

    Args:
        arguments: of bash, none of them empty: ``-c -- SCRIPT NAME`` or ``-- FILE``.
        env: variables to export.

    >>> records(["-c", "--", "echo $A"], {"A": "1"})
    b'-c\x00--\x00echo $A\x00\x00A=1\x00'
    """
    texts = [*arguments, "", *(f"{name}={value}" for name, value in env.items())]
    return b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in texts)


def container_name(home_id: str, attempt: str, member: str) -> str:
    """The name of a member's container: the same for every caller, and no other's.

    >>> container_name("/home/ann/.trainmaster", "digits-7f3a/train/0/1", "worker-0")
    'trainmaster-digits-7f3a-train-0-1-worker-0-7bb8cb52'
    """
    words = f"{attempt}/{member}"
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "-" for c in words)
    number = crc32(f"{home_id}\0{words}".encode("utf-8", "surrogateescape"))
    return f"trainmaster-{plain[:_NAME_LETTERS]}-{number:08x}"


def run_command(
    container: Mapping[str, Any],
    *,
    name: str,
    labels: Mapping[str, str],
    cwd: str,
    gpu_ids: Sequence[str],
    user: tuple[int, int],
    groups: Iterable[int],
    network: str = "",
    filter_file: str = "",
    memory_bytes: int = 0,
) -> list[str]:
    """The engine's command line; the container then waits for `records` on its standard input.

    Args:
        container: the fields of `base.Container`.
        name: from `container_name`.
        labels: whose it is, for those who look; Apptainer has none.
        cwd: working directory, inside one of the mounts.
        gpu_ids: the only ones it sees, as for CUDA_VISIBLE_DEVICES.
        user: ids of the user and the group that own what it writes.
        groups: further ones.
        network: name of the container whose network it shares; of use in a sandbox only.
        filter_file: has `system_calls`; empty for the filter of the engine.
        memory_bytes: most that it takes, where no sandbox says so; 0 is any.
    """
    if container["kind"] == APPTAINER:
        return _apptainer_command(container, name, cwd, gpu_ids)
    if container["kind"] == ENROOT:
        return enroot_command(container, scratch(container["settings"], name), cwd, gpu_ids)
    command = [container["program"], "run", "--rm", "--interactive", "--name", name]
    for key, value in labels.items():
        command += ["--label", f"trainmaster.{key}={value}"]
    command += [
        "--pull=never",
        "--log-driver=none",  # we keep the logs; the engine's copy would grow without end
        "--no-healthcheck",
        f"--workdir={cwd}",
    ]
    sandbox, shm_bytes = container.get("sandbox"), container.get("shm_bytes", 0)
    if sandbox is None:
        command += [
            "--network=host",
            # Data loaders and NCCL share memory; 64 MiB would not do.
            f"--shm-size={shm_bytes}b" if shm_bytes > shared_bytes() else "--ipc=host",
            "--pids-limit=-1",
            "--security-opt=label=disable",
        ]
        if memory_bytes and not container["rootless"]:  # whose control groups often may not bound memory
            command += [f"--memory={memory_bytes}b", f"--memory-swap={memory_bytes}b"]
        mounts = [(path, "") for path in container["mounts"]]
    else:
        command += _sandbox_options(sandbox, network, shm_bytes)
        command += [f"--security-opt=seccomp={filter_file}"] * bool(filter_file)
        user, groups = (sandbox["uid"], sandbox["gid"]), sandbox["groups"]
        # What is writable may lie in what is not.
        mounts = [(path, ",readonly") for path in sandbox["readable"]]
        mounts += [(path, "") for path in sandbox["writable"]]
    command += _user_options(container, user, groups)
    for path, how in mounts:
        command += ["--mount", _mount(path, how)]
    if gpu_ids and container["kind"] == "podman":
        command += [f"--device=nvidia.com/gpu={gpu_id}" for gpu_id in gpu_ids]
    elif gpu_ids:
        command += ["--gpus", f'"device={",".join(gpu_ids)}"']  # quoted, or it ends at the first comma
    image = container["image"]
    command += ["--entrypoint=bash", image, "-c", PROCESS_1, "trainmaster"]
    if not network:
        return command
    options = ["--rm", "--pull=never", "--network=none", "--pids-limit=8", "--entrypoint=bash"]
    options += ["--log-driver=none", "--no-healthcheck", *_KEPT_FROM_OTHERS]
    options += _user_options(container, user, ())
    script = f"HOLD={shlex.quote(HOLD)}\n{JOIN}"
    joining = ["/bin/bash", "-uc", script, "trainmaster", container["program"], network, image]
    return [*joining, " ".join(options), *command]


def image_file(name: str, settings: Mapping[str, str], kind: str = APPTAINER) -> str:
    """Where the image of this name lies, or is to lie: in the engine's cache, unless the name is a file's.

    >>> image_file("me/x:1", {"APPTAINER_CACHEDIR": "/scratch/ann"})
    '/scratch/ann/trainmaster/me%2Fx:1.sif'
    """
    if name.startswith("/") and os.path.exists(name):  # noqa: PTH110 - as elsewhere in the supervisor
        return name
    if kind == ENROOT:
        home = settings.get("XDG_CACHE_HOME") or f"{settings.get('HOME', '')}/.cache"
        cache = settings.get("ENROOT_CACHE_PATH") or f"{home}/enroot"
        return f"{cache}/trainmaster/{name.replace('/', '%2F')}.sqsh"
    given = (settings[name] for name in APPTAINER_CACHES if settings.get(name))
    cache = next(given, f"{settings.get('HOME', '')}/.apptainer/cache")
    return f"{cache}/trainmaster/{name.replace('/', '%2F')}.sif"


def scratch(settings: Mapping[str, str], name: str) -> str:
    """The directory that has ``/tmp`` of a container without a daemon.

    >>> scratch({"TMPDIR": "/scratch/ann"}, container_name("/home/ann", "digits/0/1", "worker-0"))
    '/scratch/ann/trainmaster-digits-0-1-worker-0-b6943c7c'
    """
    return f"{settings.get('TMPDIR') or '/tmp'}/{name}"  # noqa: S108 - it must not exist before


def _apptainer_command(
    container: Mapping[str, Any], name: str, cwd: str, gpu_ids: Sequence[str]
) -> list[str]:
    settings = container["settings"]
    command = [container["program"], *APPTAINER_EXEC, f"--pwd={cwd}"]
    # Members of a machine share memory, NCCL's too: of `/dev` there is all or nothing. By itself `/tmp` is in
    # memory, and small.
    command += ["--bind=/dev", f"--workdir={scratch(settings, name)}"]
    if gpu_ids:
        command.append("--rocm" if os.path.exists("/dev/kfd") else "--nv")  # noqa: PTH110
    for path in container["mounts"]:
        command += ["--mount", _mount(path)]
    command.append(image_file(container["image"], settings))
    return [*command, "bash", "-c", PROCESS_1, "trainmaster"]


def enroot_command(
    container: Mapping[str, Any],
    scratch_directory: str,
    cwd: str,
    gpu_ids: Sequence[str] = (),
    script: str = PROCESS_1,
) -> list[str]:
    """Enroot's command line; a script of bash inside."""
    gpus = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    options = ["--env", "SHELL=/bin/bash", "--env", "container=enroot"]
    for each in gpus if gpu_ids else ["NVIDIA_VISIBLE_DEVICES=void"]:
        options += ["--env", each]
    inside = [(f"{scratch_directory}/tmp", path) for path in ("/tmp", "/var/tmp")]  # noqa: S108
    for source, target in [*inside, *((path, path) for path in container["mounts"])]:
        options += ["--mount", f"{source}:{target}:none:x-create=dir,rbind,rw"]
    file = image_file(container["image"], container["settings"], ENROOT)
    words = ["enroot-nsenter", "--user", "--mount", "bash", "-c", IN_ENROOT, "trainmaster"]
    words += [container["program"], scratch_directory, file, cwd, *options, "--"]
    return ["/usr/bin/env", *words, "bash", "-c", script, "trainmaster"]


def system_calls() -> str:
    """What the filter of `sandbox` refuses, as engines read it: podman's own allows namespaces of users."""
    import json

    from trainmaster.executors.containers.sandbox import NEW_USERS, REFUSED

    new_users = {"index": 0, "value": NEW_USERS, "valueTwo": NEW_USERS, "op": "SCMP_CMP_MASKED_EQ"}
    refusals = [
        {"names": REFUSED, "errnoRet": errno.EPERM},
        {"names": ["clone", "unshare"], "errnoRet": errno.EPERM, "args": [new_users]},
        {"names": ["clone3"], "errnoRet": errno.ENOSYS},
    ]
    calls = [{**each, "action": "SCMP_ACT_ERRNO"} for each in refusals]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls})


def stop_command(container: Mapping[str, Any], name: str) -> list[str]:
    """The command line that sends SIGTERM to what runs in a container."""
    return [container["program"], "kill", "--signal=TERM", name]


def remove_command(container: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The command line that kills containers and removes them; those that are gone do no harm."""
    at_once = ["--time=0", "--ignore"] if container["kind"] == "podman" else []
    return [container["program"], "rm", "--force", "--volumes", *at_once, *names]


def shared_bytes() -> int:
    """Shared memory of this machine, in bytes; 0 if that cannot be seen."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return 0
    return found.f_frsize * found.f_blocks


def _sandbox_options(sandbox: Mapping[str, Any], network: str, shm_bytes: int) -> list[str]:
    options = [
        f"--network=container:{network}" if network else "--network=none",
        f"--pids-limit={sandbox['processes'] or -1}",
        f"--shm-size={shm_bytes}b" if shm_bytes else "--shm-size=1g",  # for data loaders
        *_KEPT_FROM_OTHERS,
    ]
    if sandbox["memory_bytes"]:
        options.append(f"--memory={sandbox['memory_bytes']}b")
    if sandbox["cpus"]:
        options.append(f"--cpus={sandbox['cpus']}")
    return options


def _user_options(container: Mapping[str, Any], user: tuple[int, int], groups: Iterable[int]) -> list[str]:
    uid, gid = user
    is_ours = container.get("sandbox") is None or container["rootless"]
    if container["kind"] == "podman" and uid and is_ours:
        return ["--userns=keep-id", f"--user={uid}:{gid}"]
    if container["rootless"]:
        return ["--user=0:0"]  # root in there is the caller out here
    return [f"--user={uid}:{gid}", *(f"--group-add={group}" for group in groups if group != gid)]


def _mount(path: str, how: str = "") -> str:
    source, target = (_quoted(f"{key}={path}") for key in ("source", "target"))
    return f"type=bind,{source},{target}{how}"


def _quoted(field: str) -> str:
    """One field of comma-separated values."""
    if not {",", '"', "\n"} & set(field):
        return field
    return '"' + field.replace('"', '""') + '"'
