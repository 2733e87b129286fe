"""Whether an artifact is what its manifest promises: looked at where it lies, nothing is changed."""

import hashlib
from collections.abc import Iterator, Mapping

from trainmaster.artifacts.manifest import (
    MANIFEST_BYTES,
    MANIFEST_KEY,
    DamagedArtifactError,
    FileEntry,
    Manifest,
    WithdrawnError,
)
from trainmaster.artifacts.owner import ForeignArtifactError, Owner
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.parallel import each
from trainmaster.spec.errors import one_line


class ArtifactCheck:
    """What is wrong with one artifact.

    Args:
        store: that it lies on.
        folder: of it, relative to the store.
        sizes_bytes: of all objects below the folder, by key relative to the store.
        owner: whose it should be.
        is_deep: read every file, and compare its SHA-256.

    Attributes:
        manifest: None if there is none that can be read.
        is_withdrawn: it was never published, and never will be.
        faults: one line each.

    Raises:
        PublishError: the store fails.
    """

    def __init__(
        self, store: ObjectStore, folder: str, sizes_bytes: Mapping[str, int], owner: Owner, *, is_deep: bool
    ) -> None:
        self._store = store
        self._folder = folder
        self.manifest: Manifest | None = None
        self.is_withdrawn = False
        self.faults: list[str] = []
        where = store.url_of(folder)
        data = store.get(f"{folder}/{MANIFEST_KEY}", MANIFEST_BYTES)
        if data is None:
            self.faults.append("its manifest is missing")
            return
        try:
            self.manifest = Manifest.from_json(data, where)
            owner.require(self.manifest, where)
        except WithdrawnError:
            self.is_withdrawn = True
        except (DamagedArtifactError, ForeignArtifactError) as error:
            self.faults.append(one_line(error))
        if self.manifest is not None:
            self.faults += self._lost(self.manifest, sizes_bytes)
            if is_deep and not self.faults:
                self.faults += self._changed(self.manifest)

    def named(self) -> Iterator[str]:
        """The keys that belong to it, relative to the store."""
        if self.manifest is not None or self.is_withdrawn or self.faults:
            yield f"{self._folder}/{MANIFEST_KEY}"
        for entry in self.manifest.files if self.manifest is not None else ():
            yield f"{self._folder}/{entry.object}"

    def _lost(self, manifest: Manifest, sizes_bytes: Mapping[str, int]) -> list[str]:
        start = f"{self._folder}/"
        here = {key.removeprefix(start): size for key, size in sizes_bytes.items() if key.startswith(start)}
        return [
            f"{entry.path!r} is missing ({entry.object})"
            if entry.object not in here
            else f"{entry.path!r} should have {entry.size_bytes:,} bytes and has {here[entry.object]:,}"
            for entry in manifest.lost(here)
        ]

    def _changed(self, manifest: Manifest) -> list[str]:
        def read(entry: FileEntry) -> str:
            digest = hashlib.sha256()
            try:
                for block in self._store.blocks(f"{self._folder}/{entry.object}"):
                    digest.update(block)
            except FileNotFoundError:
                return f"{entry.path!r} is missing ({entry.object})"
            same = digest.hexdigest() == entry.sha256
            return "" if same else f"{entry.path!r} has other bytes: its SHA-256 is not that of its manifest"

        files = [entry for entry in manifest.files if entry.kind == "file"]
        return sorted(filter(None, each(files, read, lambda entry: entry.size_bytes, self._store)))
