"""Publishing directories as an artifact: whole or not at all, also after ``kill -9`` at any line.

The files go to a folder of this try alone, ``URI/files-<random>/``; then ``manifest.json``
is created, which can succeed only once. Before that moment nothing is visible, after it
everything. What a killed publisher left behind is removed by the next one that succeeds.

Publishing what an attempt has made as a task's model, beside late drivers of the same task.

Each attempt has a place of its own, so that what a later one has published is never removed: which
one counts is written in the database, by the driver that holds the run's lease.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from trainmaster.artifacts.collecting import Content, MergedPaths, check_unchanged, collect, scan_parts
from trainmaster.artifacts.manifest import (
    JSON,
    MANIFEST_BYTES,
    MANIFEST_KEY,
    DamagedArtifactError,
    FileEntry,
    Manifest,
    check_entries,
)
from trainmaster.artifacts.owner import Owner
from trainmaster.artifacts.tree import Tree
from trainmaster.dataclass import dataclass
from trainmaster.objects.errors import explained
from trainmaster.objects.names import object_key
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError


def publish_model(
    uri: str, make: Callable[[], Manifest | None], *, attempt: int, owner: Owner | None
) -> Manifest | None:
    """Publishes the model of an attempt, or finds that it was published before we were killed.

    Args:
        uri: the attempt's place.
        make: publishes it there, with ``attempt`` and ``owner`` in its manifest; None if there is nothing.
        attempt: of the task, from 1.
        owner: of the run.

    Returns:
        The manifest; None if there is nothing.

    Raises:
        ForeignArtifactError: another run's is there.
        PublishError: another attempt's is there; and what ``make`` raises.
    """
    try:
        return make()
    except (AlreadyPublished, IncompleteArtifactError) as error:
        present = error.manifest
    store = ObjectStore(uri)
    if owner is not None:
        owner.require(present, store.url)
    theirs = present.extra.get("attempt")
    if theirs != attempt:
        raise PublishError(
            f"{store.url}: the model of attempt {theirs} is there, and not that of {attempt}.",
            "Nothing was changed; end what is left of the attempt that is not the task's last.",
        )
    try:
        require_whole(store, present)
    except IncompleteArtifactError:  # its publisher was killed before it looked again
        if owner is None or not owner.owns(present):
            raise
        delete(uri)
        return make()
    return present


FILES_PREFIX = "files-"


class AlreadyPublished(PublishError):  # noqa: N818 - for one of two publishers it is the normal end
    """Another artifact with other content is there already; nothing was changed.

    Attributes:
        manifest: of the one that is there.
    """

    def __init__(self, uri: str, manifest: Manifest) -> None:
        super().__init__(
            f"{uri}: another {manifest.kind} is there, published {manifest.created_at:%F %T} UTC.",
            "Artifacts never change: publish to another place, or delete that one first.",
        )
        self.manifest = manifest


class IncompleteArtifactError(PublishError):
    """Files that it names are not there.

    Attributes:
        manifest: of it.
    """

    def __init__(self, uri: str, manifest: Manifest, lost: Sequence[FileEntry]) -> None:
        entry = lost[0]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        super().__init__(
            f"{uri}: {entry.path!r} was uploaded and is not there ({entry.object}{more}).",
            "Something else removes what lies in the store; nothing was published.",
        )
        self.manifest = manifest


@dataclass(frozen=True, slots=True)
class Upload:
    """Files that lie in a store but belong to no artifact yet.

    Attributes:
        folder: where their bytes are, directly below the artifact's URI.
        files: what they will be called, and where the bytes are.
        notes: what was left out and why.
    """

    folder: str
    files: tuple[FileEntry, ...]
    notes: tuple[str, ...] = ()


def publish(
    parts: Mapping[str, Path],
    uri: str,
    *,
    kind: str,
    extra: Mapping[str, JSON] | None = None,
    require_stable: bool = True,
    owner: Owner | None = None,
) -> Manifest | None:
    """Publishes directories as one artifact, whole or not at all.

    Safe to repeat after a crash at any line and safe beside another publisher of the same
    ``uri``: one wins, and the other returns the winner's manifest if its own content is
    the same.

    Args:
        parts: from a prefix in the artifact (``""`` for the top, ``"members/worker-1"``) to
            a directory. Where two parts have the same path the first one wins. A directory
            that does not exist is empty.
        uri: where the artifact will be.
        kind: what it is, such as ``model``.
        extra: kept in the manifest.
        require_stable: publish only if no file changed meanwhile. Without it a file that
            vanishes is left out, and one that grows is taken as far as it was read.
        owner: kept in the manifest; what is another's is neither taken for ours nor tidied up.

    Returns:
        The manifest, or None if there is neither a file nor a symbolic link.

    Raises:
        UnstableDirectory: something changed while it was copied; nothing was published.
        AlreadyPublished: another artifact is there.
        IncompleteArtifactError: files of it have vanished.
        PublishError: a symbolic link leads outside, the store fails, or what is there is another's.
    """
    trees = scan_parts(parts, require_stable)
    if not any(node.kind != "directory" for tree in trees.values() for node in tree.nodes):
        return None
    store = ObjectStore(uri)
    present = stored_manifest(store)
    if present is not None:
        _require_owned(owner, present, store)
        require_whole(store, present)
        manifest = _kept(store, present, collect(trees, _hash_only, store, require_stable))
        _tidy(store, manifest, store.folders())
        return manifest
    upload = _upload(trees, store, require_stable)
    return publish_uploads(uri, [upload], kind=kind, extra=extra, owner=owner)


def publish_uploads(
    uri: str,
    uploads: Sequence[Upload],
    *,
    kind: str,
    extra: Mapping[str, JSON] | None = None,
    owner: Owner | None = None,
) -> Manifest:
    """Makes uploads visible as one artifact, looks once more, and removes what killed ones have left there.

    Args:
        uri: the artifact's place, the same that was uploaded to.
        uploads: where two have the same path the first one wins.
        kind: what it is.
        extra: kept in the manifest.
        owner: as in :func:`publish`.

    Raises:
        IncompleteArtifactError: something that an upload names is not there; nothing is published.
        AlreadyPublished: another artifact with other content is there.
        PublishError: a link leads outside in the union of the uploads, or the store fails. In either case
            what was uploaded is removed.
    """
    store = ObjectStore(uri)
    others = store.folders()
    manifest, is_new = _commit(store, list(uploads), kind, extra, owner)
    try:
        require_whole(store, manifest)
    except IncompleteArtifactError:
        # Another process has cleaned it up as the rest of a killed upload, just before it was committed.
        if is_new:
            store.delete([MANIFEST_KEY])
        raise
    _tidy(store, manifest, others)
    return manifest


def require_whole(store: ObjectStore, manifest: Manifest) -> None:
    """Lists an artifact's files.

    Raises:
        IncompleteArtifactError: one is missing, or has another size.
    """
    lost = manifest.lost({info.key: info.size_bytes for info in store.list("")})
    if lost:
        raise IncompleteArtifactError(store.url, manifest, lost)


def named_folders(manifest: Manifest | None) -> set[str]:
    """Folders of uploads that an artifact consists of."""
    return {entry.object.partition("/")[0] for entry in manifest.files} if manifest is not None else set()


def stored_manifest(store: ObjectStore) -> Manifest | None:
    """Reads the manifest of the artifact in ``store``; None if there is no (complete) artifact."""
    data = store.get(MANIFEST_KEY, MANIFEST_BYTES)
    return None if data is None else Manifest.from_json(data, store.url)


def read_manifest(uri: str) -> Manifest | None:
    """Reads what an artifact consists of; None if there is no complete artifact.

    Raises:
        PublishError: the manifest is damaged, or the store fails.
    """
    return stored_manifest(ObjectStore(uri))


def delete(uri: str) -> None:
    """Deletes an artifact, or what an unfinished one left; if there is none, nothing happens.

    The manifest goes first: what is half deleted is not there.

    Raises:
        PublishError: the store fails; repeat it.
    """
    store = ObjectStore(uri)
    store.delete([MANIFEST_KEY])
    store.delete_all("")


def discard(store: ObjectStore, folder: str) -> None:
    """Removes an upload as well as it can: a failure leaves waste, which does no harm."""
    with suppress(PublishError, OSError):
        store.delete_all(folder)


def _commit(
    store: ObjectStore,
    uploads: list[Upload],
    kind: str,
    extra: Mapping[str, JSON] | None,
    owner: Owner | None,
) -> tuple[Manifest, bool]:
    """Creates the manifest; see :func:`publish_uploads`. True if it is ours, and not one that was there."""
    try:
        marked = dict(extra or {}) if owner is None else owner.marked(extra or {})
        manifest = _merged(store, uploads, kind, marked)
        data = manifest.to_json()
    except (PublishError, TypeError, ValueError):
        _discard_all(store, uploads)
        raise
    # If this call fails, its object may exist all the same: then the files must stay. They are waste at
    # worst, which the next publisher removes.
    if store.put_if_absent(MANIFEST_KEY, data):
        return manifest, True
    try:
        present = stored_manifest(store)
    except DamagedArtifactError:
        _discard_all(store, uploads)
        raise
    # The first process may have gone on with an upload of ours: then the same files are named, and stay.
    named = named_folders(present)
    _discard_all(store, [each for each in uploads if each.folder not in named])
    if present is None:
        raise PublishError(f"{store.url}: it was deleted while it was published.", "Publish it again.")
    _require_owned(owner, present, store)
    return _kept(store, present, manifest.files), False


def _require_owned(owner: Owner | None, present: Manifest, store: ObjectStore) -> None:
    if owner is not None:
        owner.require(present, store.url)


def _kept(store: ObjectStore, present: Manifest, files: Iterable[FileEntry]) -> Manifest:
    if not present.same_content(files):
        raise AlreadyPublished(store.url, present)
    return present


def _merged(store: ObjectStore, uploads: list[Upload], kind: str, extra: Mapping[str, JSON]) -> Manifest:
    union = MergedPaths()
    entries = [entry for part in uploads for entry in part.files if union.add(entry.path, entry.kind)]
    files = tuple(sorted(entries, key=lambda entry: entry.path))
    check_entries(files, store.url)
    notes = tuple(note for part in uploads for note in part.notes)
    return Manifest(kind=kind, created_at=datetime.now(UTC), files=files, extra=extra, notes=notes)


def _discard_all(store: ObjectStore, uploads: Iterable[Upload]) -> None:
    for part in uploads:
        discard(store, part.folder)


def _tidy(store: ObjectStore, manifest: Manifest, folders: Iterable[str]) -> None:
    """Removes what killed publishers left, or such that have lost: all that the manifest does not name."""
    for folder in {*folders} - named_folders(manifest):
        if folder.startswith(FILES_PREFIX):
            discard(store, folder)


def _upload(trees: Mapping[str, Tree], store: ObjectStore, require_stable: bool) -> Upload:
    folder = FILES_PREFIX + secrets.token_hex(4)

    def send(content: Content, path: str) -> FileEntry:
        key = f"{folder}/{object_key(path)}"
        store.put_blocks(key, content.blocks(), content.node.stamp.size_bytes)
        return content.entry(path, key)

    try:
        files = collect(trees, send, store, require_stable)
        if require_stable:
            check_unchanged(trees)
    except FileNotFoundError as error:
        # The folder was removed under our hands: by a publisher that was first, or by a delete.
        discard(store, folder)
        present = stored_manifest(store)
        if present is not None:
            raise AlreadyPublished(store.url, present) from error
        raise explained(error, "publish", store.url) from error
    except BaseException:
        discard(store, folder)
        raise
    return Upload(folder, files, tuple(note for tree in trees.values() for note in tree.notes))


def _hash_only(content: Content, path: str) -> FileEntry:
    for _ in content.blocks():
        pass
    return content.entry(path, "")
