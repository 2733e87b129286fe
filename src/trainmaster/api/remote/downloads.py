"""`download`: a model's files from a server, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath

from trainmaster.api.remote.connection import RestConnection, quoted
from trainmaster.api.results import Downloaded
from trainmaster.artifacts.scratch import is_occupied, move_into_place, occupied, scratch_directory
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import PublishError


def download(connection: RestConnection, run: str, experiment: str, task: int, directory: Path) -> Downloaded:
    """Fetch the files of a model, and compare their hashes.

    Args:
        connection: to the server.
        run: id of its run.
        experiment: its experiment.
        task: its task.
        directory: where to; empty, or not there yet.

    Raises:
        NotFoundError: the model is not there (any more).
        UsageError: the directory is not empty.
        PublishError: a file is damaged; nothing was changed.
    """
    target = directory.absolute()
    if is_occupied(target):
        raise occupied(target)
    model = f"/models/{quoted(run)}/{quoted(experiment)}/{task}"
    listing = connection.get(model)
    files = listing["files"]
    links = {link["path"]: link["target"] for link in listing["links"]}
    for path in (*(file["path"] for file in files), *links):
        if not stays_inside(path) or (path in links and not link_stays_inside(path, links)):
            raise PublishError(f"{run}: {path!r} leads out of the model.", "Nothing was changed.")
    with scratch_directory(target) as scratch:
        for file in files:
            path = PurePosixPath(file["path"])
            place = scratch / path
            place.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with place.open("wb") as copy:
                where = f"{model}/files/{'/'.join(map(quoted, path.parts))}"
                for piece in connection.pieces(where, {"redirect": "false"}):
                    digest.update(piece)
                    copy.write(piece)
                os.fchmod(copy.fileno(), file.get("mode", 0o644) & 0o777 | 0o600)
            if digest.hexdigest() != file["sha256"]:
                raise PublishError(
                    f"{run}: {file['path']!r} came damaged: its SHA-256 should be {file['sha256']}.",
                    "Fetch it again. Nothing was changed.",
                )
        for path, target_of_link in links.items():  # last: nothing is written through one
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / path).symlink_to(target_of_link)
        if not move_into_place(scratch, target):
            raise occupied(target)
    return Downloaded(len(files), sum(file["size_bytes"] for file in files))
