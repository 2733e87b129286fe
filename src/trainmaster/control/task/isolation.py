"""`Isolation`: how tasks that others have sent run on this machine, apart from it and from each other's."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainmaster import library
from trainmaster.control.decide.effects import Policy
from trainmaster.control.task.environment import UNBUFFERED
from trainmaster.control.task.gangs import slots_per_member
from trainmaster.control.task.job_context import TaskContext
from trainmaster.dataclass import dataclass
from trainmaster.executors.base import UNIX_USER, Container, Sandbox
from trainmaster.executors.capacity import detect_capacity
from trainmaster.spec import Recipe

#: Most processes and threads of a container, and of all tasks of a Unix user: data loaders have many.
MOST_PROCESSES: Final = 8192
#: How long those may take to end whose time is bounded.
MOST_GRACE_S: Final = 300.0
_LONGEST: Final = "longest time of a team's tasks on this machine"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Isolation:
    """One team's.

    Attributes:
        uid: whom members run as, and whose what they write is.
        gid: the group of that user.
        groups: further ones.
        user: the name of that user, for members.
        image: what they run in; empty for a Unix user, who has this machine's programs.
        hidden: directories of this machine that a Unix user sees nothing of.
        most_s: attempts are ended after so long, in seconds; 0 is never.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    user: str = "nobody"
    image: str = ""
    hidden: tuple[Path, ...] = ()
    most_s: float = 0.0

    def bounded(self, policies: Mapping[str, Policy]) -> dict[str, Policy]:
        """What the recipe says of its tasks, as far as others have time left."""
        if not self.most_s:
            return dict(policies)
        found = {}
        for name, policy in policies.items():
            bounded = replace(policy, grace_s=min(policy.grace_s, MOST_GRACE_S))
            if policy.timeout_s is None or policy.timeout_s > self.most_s:
                bounded = replace(bounded, timeout_s=self.most_s, timeout_name=_LONGEST)
            found[name] = bounded
        return found

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe as it is driven."""
        if not self.image:
            return recipe
        found = recipe.experiments.items()
        experiments = {name: each.model_copy(update={"container": self.image}) for name, each in found}
        return recipe.model_copy(update={"experiments": experiments})

    def base_environment(self) -> dict[str, str]:
        """What members inherit that run as a Unix user: nothing of whoever runs the server."""
        python = Path(sys.executable).parent
        names = {"PATH": f"{python}:{_PATH}", "HOME": "/tmp", "USER": self.user, "LOGNAME": self.user}  # noqa: S108
        return {**UNBUFFERED, **names, "LANG": "C.UTF-8"}

    def sandbox(self, readable: Iterable[Path] = (), writable: Iterable[Path] = ()) -> Sandbox:
        """What a member sees of this machine."""
        own = [path for path in map(Path, _python()) if any(map(path.is_relative_to, self.hidden))]
        shown = [*(() if self.image else own), *readable]
        return Sandbox(
            uid=self.uid,
            gid=self.gid,
            groups=self.groups,
            readable=tuple(dict.fromkeys(map(str, shown))),
            writable=tuple(str(path) for path in writable),
            hidden=tuple(map(str, self.hidden)),
            processes=MOST_PROCESSES,
        )

    def enclosed(self, context: TaskContext, container: Container | None) -> Container:
        """How the members of an attempt are started."""
        place, capacity = context.place, detect_capacity()
        sandbox = self.sandbox([place.directory, *_readable(context)], _writable(context))
        cpus = min(slots_per_member(context.experiment), capacity.cores)
        share_bytes = capacity.memory_bytes // max(capacity.cores // cpus, len(context.members))
        sandbox = replace(sandbox, memory_bytes=context.experiment.hardware.memory_bytes or share_bytes)
        if container is None:
            sandbox = replace(sandbox, scratch=str(place.scratch))
            settings = self.base_environment()
            return Container("", sys.executable, UNIX_USER, settings=settings, sandbox=sandbox)
        sandbox = replace(sandbox, cpus=cpus, has_peers=len(context.members) > 1)
        return replace(container, mounts=(), sandbox=sandbox)

    def hand_over(self, context: TaskContext) -> None:
        """Let the members of an attempt that was staged read what is for them, and write what is theirs.

        Safe to repeat until they start.

        Raises:
            OSError: the disk is full, or this process may not.
        """
        for path in _readable(context):
            for name, mode in _tree(path):
                wanted = mode | (0o555 if mode & 0o111 or stat.S_ISDIR(mode) else 0o444)
                if wanted != mode and not stat.S_ISLNK(mode):
                    Path(name).chmod(stat.S_IMODE(wanted))
        place = context.place
        for name in context.members:
            place.metrics(name).touch()
        if not self.image:
            for name in context.members:
                (place.scratch / name).mkdir(parents=True, exist_ok=True)
        for path in [*_writable(context), *([] if self.image else [place.scratch])]:
            for name, _ in _tree(path):
                os.chown(name, self.uid, self.gid, follow_symlinks=False)


def _python() -> Iterator[str]:
    """Where the Python that runs us, and what it imports, may lie."""
    yield from (sys.prefix, sys.base_prefix, str(Path(library.DIRECTORY).parents[1]))


def _readable(context: TaskContext) -> list[Path]:
    """Code and data, here."""
    return [path for path in context.seen(context.data_places) if path != context.place.directory]


def _writable(context: TaskContext) -> list[Path]:
    """What members make."""
    place = context.place
    return [place.checkpoint, *context.parts.values(), *map(place.metrics, context.members)]


def _tree(path: Path) -> Iterator[tuple[str, int]]:
    """Everything at and below a path, with its mode; links are not followed, but for the path itself."""
    top = os.path.realpath(path)
    yield top, os.lstat(top).st_mode
    for place, folders, names in os.walk(top):
        for name in [*folders, *names]:
            below = os.path.join(place, name)  # noqa: PTH118 - names are any bytes
            yield below, os.lstat(below).st_mode
