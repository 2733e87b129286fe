"""Artifacts: directories published on an object store, there whole or not at all.

::

    URI/manifest.json            written last, created only once
    URI/files-1f2e3d4c/model.pt  the bytes; names that stores do not allow are escaped
"""

from trainmaster.artifacts.fetching import fetch
from trainmaster.artifacts.manifest import JSON, MANIFEST_KEY, FileEntry, Manifest
from trainmaster.artifacts.publishing import (
    FILES_PREFIX,
    AlreadyPublished,
    Upload,
    commit,
    publish,
    stored_manifest,
    upload,
)
from trainmaster.artifacts.tree import Listing, Stamp, UnstableDirectory, listing, parts_listing
from trainmaster.objects.object_store import ObjectStore

__all__ = [
    "JSON",
    "AlreadyPublished",
    "FileEntry",
    "Listing",
    "Manifest",
    "Stamp",
    "UnstableDirectory",
    "Upload",
    "commit",
    "delete",
    "fetch",
    "list_artifacts",
    "listing",
    "parts_listing",
    "publish",
    "read_manifest",
    "upload",
]


def read_manifest(uri: str) -> Manifest | None:
    """Reads what an artifact consists of; None if there is no complete artifact.

    Raises:
        PublishError: the manifest is damaged, or the store fails.
    """
    return stored_manifest(ObjectStore(uri))


def list_artifacts(prefix_uri: str) -> list[str]:
    """Gives the URIs of the complete artifacts at or below a URI, sorted.

    Raises:
        PublishError: the store fails.
    """
    store = ObjectStore(prefix_uri)
    found = []
    pending = [""]
    while pending:
        folder = pending.pop()
        where = f"{folder}/" if folder else ""
        if store.exists(where + MANIFEST_KEY):
            found.append(store.url_of(folder))
            continue
        pending += [where + name for name in store.folders(folder) if not name.startswith(FILES_PREFIX)]
    return sorted(found)


def delete(uri: str) -> None:
    """Deletes an artifact, or what an unfinished one left; if there is none, nothing happens.

    The manifest goes first: what is half deleted is not there.

    Raises:
        PublishError: the store fails; repeat it.
    """
    store = ObjectStore(uri)
    store.delete([MANIFEST_KEY])
    store.delete_all("")
