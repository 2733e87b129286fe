"""The checkpoints of a task: numbered artifacts, of which the newest complete one counts."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from trainmaster.spec.errors import PublishError
from trainmaster.volumes.artifact import delete, fetch, publish, read_manifest
from trainmaster.volumes.manifest import JSON, MANIFEST_KEY, Manifest
from trainmaster.volumes.objects import ObjectStore
from trainmaster.volumes.publishing import AlreadyPublished
from trainmaster.volumes.tree import Listing, parts_listing

# Each time another publisher was first; more often is no coincidence.
_TRIES = 5


class CheckpointSeries:
    """The checkpoints below one URI: ``URI/000001``, ``URI/000002``, ...

    A number is taken by creating its manifest, which succeeds only once. A later attempt
    fences off earlier ones: once attempt 2 has published, attempt 1 cannot any more. Safe to
    use from several threads and processes at once; holds no state but the URI.

    Attributes:
        uri: where the series lies.
    """

    def __init__(self, base_uri: str) -> None:
        self._store = ObjectStore(base_uri)
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
            parts: as in :func:`trainmaster.volumes.publish`; rank 0 first.
            attempt: of the task, from 1; kept in the manifest as ``attempt``.
            extra: kept in the manifest too.
            last: ``parts_listing(parts)`` as it was before the last checkpoint was published,
                or right after it was restored; if it is still the same, nothing is published.
            require_stable: as in :func:`trainmaster.volumes.publish`.

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
            )

        return self.publish_made(make, attempt=attempt)

    def publish_made(self, make: Callable[[str], Manifest | None], *, attempt: int) -> int | None:
        """Publishes the next checkpoint, made by somebody else.

        Args:
            make: publishes an artifact at a URI, with ``attempt`` in its manifest; None if there is nothing.
            attempt: of the task, from 1.

        Returns:
            Its number; None if there is nothing.

        Raises:
            PublishError: a later attempt has published already; and what ``make`` raises.
        """
        for _ in range(_TRIES):
            newest = self.newest()
            if newest is not None:
                self._require_not_later(newest, attempt)
            number = (newest or 0) + 1
            try:
                manifest = make(self.uri_of(number))
            except AlreadyPublished as error:
                _refuse_later(error.manifest, number, attempt)
                continue
            if manifest is None:
                return None
            if (self.newest() or 0) > number:
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
        """Gives the numbers of the complete checkpoints, the oldest first."""
        numbers = self._numbers()
        if self._store.is_local or len(numbers) <= 1:
            return [number for number in numbers if self._is_complete(number)]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(16, len(numbers))) as pool:
            return [
                number
                for number, is_there in zip(numbers, pool.map(self._is_complete, numbers), strict=True)
                if is_there
            ]

    def newest(self, before: int | None = None) -> int | None:
        """Gives the number of the newest complete checkpoint; None if there is none.

        Args:
            before: only those with a smaller number.
        """
        for number in reversed(self._numbers()):
            if (before is None or number < before) and self._is_complete(number):
                return number
        return None

    def manifest(self, number: int) -> Manifest | None:
        """Reads what a checkpoint consists of; None if it is not complete."""
        return read_manifest(self.uri_of(number))

    def restore(self, number: int, directory: Path, *, overwrite: bool = False) -> Manifest:
        """Brings a checkpoint back, whole or not at all; see :func:`trainmaster.volumes.fetch`."""
        return fetch(self.uri_of(number), directory, overwrite=overwrite)

    def prune(self, keep: int, protect: Collection[int] = ()) -> list[int]:
        """Deletes all complete checkpoints but the newest ``keep``, and what unfinished older ones left.

        Args:
            keep: how many stay; at least 1, for the newest is what a restart needs.
            protect: numbers that stay in any case.

        Returns:
            The numbers that were deleted.
        """
        complete = self.complete()
        if not complete:
            return []
        kept = {*complete[-max(1, keep) :], *protect}
        # Above the newest complete one somebody may be publishing right now.
        gone = [number for number in self._numbers() if number < complete[-1] and number not in kept]
        for number in gone:
            delete(self.uri_of(number))
        return gone

    def clear_unfinished(self) -> None:
        """Deletes what uploads that were cut off have left above the newest complete checkpoint.

        For when nobody publishes any more: while somebody does, the next one that succeeds sees to it.
        """
        newest = self.newest() or 0
        for number in self._numbers():
            if number > newest and not self._is_complete(number):
                delete(self.uri_of(number))

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._store.folders() if _is_number(name))

    def _is_complete(self, number: int) -> bool:
        return self._store.exists(f"{number:06d}/{MANIFEST_KEY}")

    def _require_not_later(self, number: int, attempt: int) -> None:
        manifest = self.manifest(number)
        if manifest is not None:
            _refuse_later(manifest, number, attempt)


def _is_number(name: str) -> bool:
    return len(name) >= 6 and name.isascii() and name.isdigit() and f"{int(name):06d}" == name


def _refuse_later(manifest: Manifest, number: int, attempt: int) -> None:
    theirs = manifest.extra.get("attempt")
    if isinstance(theirs, int) and theirs > attempt:
        raise PublishError(
            f"Checkpoint {number} is of attempt {theirs}: attempt {attempt} is over.",
            "Nothing was published; end what is left of the old attempt.",
        )
