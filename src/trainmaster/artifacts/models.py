"""Publishing what an attempt has made as a task's model, beside late drivers of the same task.

Each attempt has a place of its own, so that what a later one has published is never removed: which
one counts is written in the database, by the driver that holds the run's lease.
"""

from collections.abc import Callable

from trainmaster.artifacts.manifest import Manifest
from trainmaster.artifacts.owner import Owner
from trainmaster.artifacts.publishing import (
    AlreadyPublished,
    IncompleteArtifactError,
    delete,
    require_whole,
    stored_manifest,
)
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


def remove_unrecorded(uri: str, *, attempt: int, owner: Owner | None) -> None:
    """Deletes the model of an attempt that never counted; what is not surely that stays.

    Raises:
        PublishError: the store fails.
    """
    manifest = stored_manifest(ObjectStore(uri))
    if (
        manifest is not None
        and owner is not None
        and owner.owns(manifest)
        and manifest.extra.get("attempt") == attempt
    ):
        delete(uri)
