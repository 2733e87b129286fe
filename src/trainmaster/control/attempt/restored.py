"""What an attempt on nodes has begun with, kept as long as it runs.

Where several nodes publish together, this tells what each holds as it was restored from what it has changed.
The checkpoint itself may make room for newer ones, and the driver may be killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.artifacts import Manifest
from trainmaster.spec.private_files import write_private

if TYPE_CHECKING:
    from trainmaster.control.task.layout import AttemptPlace


def note_restored(place: AttemptPlace, manifest: Manifest | None) -> None:
    """Keep what an attempt begins with; before any of it is on a node.

    Args:
        place: of the attempt.
        manifest: of the checkpoint; None if it begins with nothing.

    Raises:
        OSError: it cannot be written.
    """
    if manifest is None:
        place.restored.unlink(missing_ok=True)
        return
    write_private(place.restored, manifest.to_json())


def noted_restored(place: AttemptPlace) -> Manifest | None:
    """What `note_restored` has kept.

    Raises:
        PublishError: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        data = place.restored.read_bytes()
    except FileNotFoundError:
        return None
    return Manifest.from_json(data, str(place.restored))
