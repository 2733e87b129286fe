"""Control groups: which one a process is in, where the kernel shows it, new ones that bound an attempt."""
# ruff: noqa: PTH103, PTH106, PTH110, PTH112, PTH120, PTH123, SIM105 - pathlib and contextlib cost time

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: What bounds an attempt: controllers, each in a hierarchy of its own or all in one (version 2).
_CONTROLLERS = ("memory", "pids")
_KILLS = b"oom_kill "


def group_of(pid: str, controller: str, root: str = "") -> str:
    """The line of ``/proc/PID/cgroup`` that rules a controller: ``CONTROLLER:PATH``, of version 2 ``:PATH``.

    Args:
        pid: or ``self``.
        controller: such as ``memory``.
        root: where ``proc`` and ``sys`` are (tests make their own), without a slash at its end.

    Returns:
        Empty without one.
    """
    try:
        with open(f"{root}/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    unified = ""
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return f"{controller}:{path}"
        if not names:
            unified = f":{path}"
    return unified


def directories(group: str, root: str = "") -> Iterator[str]:
    """Where a group may be seen.

    Args:
        group: from `group_of`.
        root: where control groups are, from `group_of`.
    """
    controller, _, path = group.partition(":")
    wanted = "cgroup" if controller else "cgroup2"
    try:
        with open(f"{root}/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return
    for line in lines if path else ():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.strip().partition(" ")
        if kind != wanted or (controller and controller not in options.rpartition(" ")[2].split(",")):
            continue
        # a container may see no more than its own part of the tree, which is then the mount's root
        top, point = (_unescaped(field) for field in fields.split()[3:5])
        inside = path[len(top.rstrip("/")) :] if f"{path}/".startswith(f"{top.rstrip('/')}/") else ""
        yield f"{root}{point}{inside.rstrip('/')}"


def places(name: str, root: str = "") -> list[str]:
    """Directories that are, or would be, the control group of an attempt; none where there are none.

    They lie below our own group. In version 2 one that holds processes has no others below it that are
    bounded, so there they lie beside it.

    Args:
        name: of the group.
        root: as of `group_of`.
    """
    found = []
    for controller in _CONTROLLERS:
        group = group_of("self", controller, root)
        if group.startswith(":"):
            parent = group.rpartition("/")[0]
            group = parent if parent != ":" else ":/"
        found += [f"{place}/{name}" for place in directories(group, root) if os.path.isdir(place)][:1]
    return list(dict.fromkeys(found))


def make(place: str, memory_bytes: int, processes: int) -> bool:
    """Make a control group; one that is there gets these limits.

    Args:
        place: one of `places`.
        memory_bytes: most that its processes take, with all that they keep in memory; 0 is any.
        processes: most processes and threads; 0 is any.

    Returns:
        Whether it bounds anything; else there is none.
    """
    limits = {
        "memory.limit_in_bytes": memory_bytes,
        "memory.memsw.limit_in_bytes": memory_bytes,  # swap is for none: it is everybody's
        "memory.max": memory_bytes,
        "memory.swap.max": 0 if memory_bytes else -1,
        "pids.max": processes,
    }
    bounds = False
    for controller in _CONTROLLERS:
        _have_below(os.path.dirname(place), controller)
    try:
        os.makedirs(place, exist_ok=True)
        for name, most in limits.items():
            path = f"{place}/{name}"
            if most >= 0 and (most or name == "memory.swap.max") and os.path.exists(path):
                with open(path, "w", encoding="ascii") as file:
                    file.write(str(most))
                bounds = True
    except OSError:
        bounds = False  # a container that may not, as most
    if not bounds:
        remove(place)
    return bounds


def join(place: str, pid: int) -> None:
    """Put a process into a control group; what it starts from now on is there, too.

    Raises:
        OSError: it may not.
    """
    with open(f"{place}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(pid))


def remove(place: str) -> None:
    """Give up a control group that has no processes any more; again, it changes nothing."""
    try:
        os.rmdir(place)
    except OSError:
        pass


def kills_told_by(path: str | None) -> int | None:
    """A counter of the kernel's, None where there is none."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(_KILLS):
                    return int(line[len(_KILLS) :])
    except (OSError, ValueError):
        pass
    return None


def _have_below(place: str, controller: str) -> None:
    """Version 2: let a controller rule what lies below; systemd sees to that by itself."""
    path = f"{place}/cgroup.subtree_control"
    try:
        with open(path, encoding="ascii") as file:
            has = controller in file.read().split()
        if not has:
            with open(path, "w", encoding="ascii") as file:
                file.write(f"+{controller}")
    except OSError:
        pass  # version 1, or it has processes of its own


def _unescaped(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
