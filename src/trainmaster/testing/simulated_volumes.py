"""A collection of a volume's garbage that is halted for hours while others push: all of it real code."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import TrainmasterError
from trainmaster.volumes.packed.garbage import _named_chunks, collect_garbage
from trainmaster.volumes.packed.head import alive_heads, head_numbers, remove_version
from trainmaster.volumes.packed.leases import Clocks
from trainmaster.volumes.packed.pushing import push

if TYPE_CHECKING:
    from trainmaster.testing.failures import Failures

_HOUR_S: Final = 3600.0
_BYTES: Final = 9_000
_made: Final[list[tempfile.TemporaryDirectory[str]]] = []


@cache
def trees() -> Path:
    """Two directories to push; made once per process, and removed with it."""
    _made.append(tempfile.TemporaryDirectory(prefix="trainmaster-simulation-volumes-"))
    root = Path(_made[0].name)
    for name in "ab":
        (root / name).mkdir()
        (root / name / "own").write_bytes(name.encode() * _BYTES)
    return root


class Volumes:
    """One volume, and the processes that work on it.

    Args:
        failures: the simulation; its store keeps the volume.
    """

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._objects = failures.objects
        self._url = f"memory://volume-{failures.world.rng.randrange(10**9)}"
        self._halt_after = failures.world.rng.randrange(30)
        self._clocks = Clocks(self._now, self._now, self._sleep)

    def go(self) -> None:
        """A version is removed and pushed again while what it had is collected."""
        with self._objects.judged():
            self._push("a")
            self._push("b")
            remove_version(ObjectStore(self._url), 1)
            self._collect()
            self._sleep(_HOUR_S)
            self._objects.on_request = self._halt
            try:
                self._collect()
            finally:
                self._objects.on_request = None
            self._check()

    def _now(self) -> float:
        return self._failures.world.now + self._objects.later_s

    def _sleep(self, seconds: float) -> None:
        self._objects.later_s += max(seconds, 600.0)

    def _push(self, tree: str) -> None:
        root, limit = trees(), _BYTES + 1
        push(
            root / tree,
            self._url,
            cache=root / "cache",
            chunk_limit_bytes=limit,
            jobs=1,
            clocks=self._clocks,
        )

    def _collect(self) -> None:
        try:
            collect_garbage(ObjectStore(self._url), 0.0, clocks=self._clocks)
        except TrainmasterError as error:  # a process that was halted may find that others have gone on
            self._failures.world.note(f"the collection ends: {error}")

    def _halt(self) -> None:
        self._halt_after -= 1
        if self._halt_after == 0:
            self._objects.on_request = None
            hours = self._failures.world.rng.choice((0.5, 2.0, 30.0))
            self._failures.world.note(f"a collection is halted for {hours:g} h, and others push")
            self._sleep(hours * _HOUR_S)
            self._push("a")

    def _check(self) -> None:
        store = ObjectStore(self._url)
        for head in alive_heads(store):
            lost = [table.key for table in head.tables if store.info(table.key) is None]
            lost = lost or [key for key in _named_chunks(store, head) if store.info(key) is None]
            if lost:
                self._failures.world.fail(f"version {head.version} of a volume has lost {lost[0]}")
        if len(head_numbers(store)[0]) < 1:
            self._failures.world.fail("a volume has lost all its versions")
