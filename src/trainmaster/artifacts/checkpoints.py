"""The checkpoints of a task: numbered artifacts, of which the newest complete one counts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from trainmaster.artifacts.fetching import fetch
from trainmaster.artifacts.manifest import (
    JSON,
    MANIFEST_KEY,
    WITHDRAWN,
    DamagedArtifactError,
    Manifest,
    WithdrawnError,
)
from trainmaster.artifacts.owner import Owner
from trainmaster.artifacts.publishing import (
    AlreadyPublished,
    IncompleteArtifactError,
    delete,
    publish,
    require_whole,
    stored_manifest,
)
from trainmaster.artifacts.tree import Listing, parts_listing
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError

# Latency is what counts on a network.
_THREADS = 16
# Each time another publisher was first; more often is no coincidence.
_TRIES = 5


class CheckpointSeries:
    """The checkpoints below one URI: ``URI/000001``, ``URI/000002``, ...

    A number is taken by creating its manifest, which succeeds only once, and is never free again
    while no higher one is complete. A later attempt fences off earlier ones: once attempt 2 has
    published, attempt 1 cannot any more. A checkpoint is complete if all files of its manifest are
    there. Safe to use from several threads and processes at once; holds no state but the URI.

    Args:
        base_uri: where the series lies.
        owner: the run that it is of; without one the owner of a checkpoint is not checked.

    Attributes:
        uri, owner: as given.
    """

    def __init__(self, base_uri: str, owner: Owner | None = None) -> None:
        self._store = ObjectStore(base_uri)
        self.owner = owner
        self.uri = self._store.url

    def publish(
        self,
        parts: Mapping[str, Path],
        *,
        attempt: int,
        extra: Mapping[str, JSON] | None = None,
        last: Listing | None = None,
        require_stable: bool = True,
    ) -> int | None:
        """Publishes the next checkpoint.

        Args:
            parts: as in :func:`trainmaster.artifacts.publish`; rank 0 first.
            attempt: of the task, from 1; kept in the manifest as ``attempt``.
            extra: kept in the manifest too.
            last: ``parts_listing(parts)`` as it was before the last checkpoint was published,
                or right after it was restored; if it is still the same, nothing is published.
            require_stable: as in :func:`trainmaster.artifacts.publish`.

        Returns:
            Its number; None if there is nothing, or nothing new.

        Raises:
            UnstableDirectory: something changed while it was copied; try later.
            PublishError: a later attempt has published already, or the store fails.
        """
        if last is not None and parts_listing(parts) == last:
            return None

        def make(uri: str) -> Manifest | None:
            return publish(
                parts,
                uri,
                kind="checkpoint",
                extra={**(extra or {}), "attempt": attempt},
                require_stable=require_stable,
                owner=self.owner,
            )

        return self.publish_made(make, attempt=attempt)

    def publish_made(self, make: Callable[[str], Manifest | None], *, attempt: int) -> int | None:
        """Publishes the next checkpoint, made by somebody else.

        Args:
            make: publishes an artifact at a URI, with ``attempt`` and :attr:`owner` in its manifest; None if
                there is nothing.
            attempt: of the task, from 1.

        Returns:
            Its number; None if there is nothing.

        Raises:
            PublishError: a later attempt has published already; and what ``make`` raises.
        """
        for _ in range(_TRIES):
            taken, newest = self._newest_taken()
            if newest is not None:
                self._require_ours(*newest, attempt)
            number = taken + 1
            try:
                manifest = make(self.uri_of(number))
            except AlreadyPublished as error:
                self._require_ours(number, error.manifest, attempt)
                continue
            except (IncompleteArtifactError, WithdrawnError):  # somebody has cleared up what we were sending
                continue
            if manifest is None:
                return None
            if self._last_taken() > number and (self.newest() or 0) > number:
                # So slow that others have gone on, and perhaps pruned this number before it was taken: it
                # must not appear behind their backs. What they have is newer anyway.
                delete(self.uri_of(number))
                continue
            return number
        raise PublishError(
            f"{self.uri}: {_TRIES} times another publisher was faster.",
            "Two processes publish checkpoints of one task; stop one of them.",
        )

    def uri_of(self, number: int) -> str:
        """Gives the URI of a checkpoint, complete or not."""
        return f"{self.uri}/{number:06d}"

    def complete(self) -> list[int]:
        """Gives the numbers of the complete checkpoints, the oldest first.

        Raises:
            ForeignArtifactError: one is another's.
            PublishError: the store fails.
        """
        return self._whole(self._numbers())

    def broken(self, above: int) -> list[int]:
        """Gives the numbers above one that were published, and cannot be restored any more.

        Raises:
            ForeignArtifactError: one is another's.
            PublishError: the store fails.
        """
        return [number for number in self._numbers() if number > above and self._state(number) is False]

    def newest(self) -> int | None:
        """Gives the number of the newest complete checkpoint; None if there is none.

        Raises:
            ForeignArtifactError: it is another's.
            PublishError: the store fails.
        """
        return next(filter(self._is_whole, reversed(self._numbers())), None)

    def manifest(self, number: int) -> Manifest | None:
        """Reads what a checkpoint consists of; None if it was never published.

        Raises:
            DamagedArtifactError: it is no manifest.
            ForeignArtifactError: it is another's.
            PublishError: the store fails.
        """
        try:
            manifest = stored_manifest(ObjectStore(self.uri_of(number)))
        except WithdrawnError:
            return None
        if manifest is not None and self.owner is not None:
            self.owner.require(manifest, self.uri_of(number))
        return manifest

    def restore(self, number: int, directory: Path) -> Manifest:
        """Brings a checkpoint back, whole or not at all; see :func:`trainmaster.artifacts.fetch`."""
        return fetch(self.uri_of(number), directory, owner=self.owner)

    def prune(self, keep: int, bad: Collection[int] = ()) -> list[int]:
        """Deletes what is older than the newest ``keep`` good checkpoints; never the last good one.

        Returns:
            The numbers that were deleted; the rest is as of `surplus`.
        """
        gone = self.surplus(keep, bad)
        for number in gone:
            delete(self.uri_of(number))
        return gone

    def surplus(self, keep: int, bad: Collection[int] = ()) -> list[int]:
        """What is older than the newest ``keep`` good checkpoints; never the last good one.

        Good is what is complete, as a listing of its files shows, and not known as bad. While there is
        nothing to delete this costs one listing; else a manifest and a listing for each checkpoint.

        Args:
            keep: how many stay; at least 1, for the newest is what a restart needs.
            bad: numbers that will not be restored; the first to go.

        Raises:
            ForeignArtifactError: one is another's.
            PublishError: the store fails.
        """
        numbers = self._numbers()
        if len(numbers) <= max(1, keep):
            return []
        good = self._whole([number for number in numbers if number not in bad])[-max(1, keep) :]
        if not good:
            return []
        # Above the newest good one somebody may be publishing right now; and a number that is taken must
        # not become free: the process that published it may be about to take it back.
        old = [number for number in numbers if number < good[-1] and number not in good]
        old.sort(key=lambda number: number not in bad)
        return [number for number in old if self._may_delete(number)]

    def delete_all(self) -> None:
        """Deletes all that only we can have published: for when nothing is published or restored any more.

        Raises:
            PublishError: the store fails.
        """
        for number in filter(self._may_delete, self._numbers()):
            delete(self.uri_of(number))

    def clear_unfinished(self) -> None:
        """Deletes what uploads that were cut off have left above the newest checkpoint.

        For when publishing is over. A late publisher cannot commit there, and begins
        again with the next number.
        """
        taken = self._last_taken()
        for number in self._numbers():
            folder = f"{number:06d}"
            if number > taken and self._store.put_if_absent(f"{folder}/{MANIFEST_KEY}", WITHDRAWN):
                for upload in self._store.folders(folder):
                    self._store.delete_all(f"{folder}/{upload}")

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._store.folders() if _is_number(name))

    def _last_taken(self) -> int:
        """The highest number that cannot be published any more; 0 if there is none."""
        for number in reversed(self._numbers()):
            if self._store.exists(f"{number:06d}/{MANIFEST_KEY}"):
                return number
        return 0

    def _newest_taken(self) -> tuple[int, tuple[int, Manifest] | None]:
        """The highest number that is taken, and the newest checkpoint whose manifest can be read."""
        taken = 0
        for number in reversed(self._numbers()):
            try:
                manifest = stored_manifest(ObjectStore(self.uri_of(number)))
            except DamagedArtifactError:
                taken = taken or number
                continue
            if manifest is not None:
                return taken or number, (number, manifest)
        return taken, None

    def _whole(self, numbers: Sequence[int]) -> list[int]:
        threads = 1 if self._store.is_local else min(_THREADS, len(numbers))
        if threads <= 1:
            return [number for number in numbers if self._is_whole(number)]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            found = zip(numbers, pool.map(self._is_whole, numbers), strict=True)
            return [number for number, is_whole in found if is_whole]

    def _is_whole(self, number: int) -> bool:
        """Whether all files of a checkpoint are there."""
        return bool(self._state(number))

    def _state(self, number: int) -> bool | None:
        """Whether all files of a checkpoint are there; None if it was never published."""
        try:
            manifest = self.manifest(number)
            if manifest is None:
                return None
            require_whole(ObjectStore(self.uri_of(number)), manifest)
        except (DamagedArtifactError, IncompleteArtifactError):
            return False
        return True

    def _may_delete(self, number: int) -> bool:
        """Whether only we can have published it."""
        if self.owner is None:
            return True
        try:
            manifest = self.manifest(number)
        except DamagedArtifactError:
            return True
        return manifest is None or self.owner.owns(manifest)

    def _require_ours(self, number: int, manifest: Manifest, attempt: int) -> None:
        if self.owner is not None:
            self.owner.require(manifest, self.uri_of(number))
        theirs = manifest.extra.get("attempt")
        if isinstance(theirs, int) and theirs > attempt:
            raise PublishError(
                f"Checkpoint {number} is of attempt {theirs}: attempt {attempt} is over.",
                "Nothing was published; end what is left of the old attempt.",
            )


def _is_number(name: str) -> bool:
    return len(name) >= 6 and name.isascii() and name.isdigit() and f"{int(name):06d}" == name
