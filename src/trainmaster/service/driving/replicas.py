"""Runs that any server shows and goes on with: their files are brought here from the database.

A server that only looks keeps a replica in its cache. What takes a run over brings it into a home of its own
below the server's, which bears the name of the first one: machines, their directories and what is published
are found by that name. From then on `run.kept_by` says whose disk has the files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.checks.preflight import why_bound_by_data
from trainmaster.control.task.layout import Home, RunFiles
from trainmaster.db import Database, Lease, run_files
from trainmaster.db.run_files import SECRETS, private_place
from trainmaster.objects import ObjectStore
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, PublishError, fails_as
from trainmaster.spec.private_files import make_private, write_private
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.providers.base import ProviderPlace
    from trainmaster.service.driving.encryption import SealingKey
    from trainmaster.service.driving.replication import Replication

#: In the home of a server: runs that it has taken over, a home each.
TAKEN: Final = "taken"
#: In the cache: what is only looked at.
REPLICAS: Final = "replicas"
_LAST: Final = "last-piece"
#: In the home of a server: what leads to machines of runs that are elsewhere.
ACCESS: Final = "access"
#: Code on the store that is older is put there again, as it may just be removed.
_FRESH_S: Final = 24 * 3600.0
#: A tar of as much code as a snapshot may have, and so much more for what a tar adds.
_MOST_CODE_BYTES: Final = 200 << 20


def why_bound(provider: str, store_url: str, *, is_shared: bool = True, is_sent: bool = False) -> str:
    """Why only the server that accepted a run can show and drive it; empty if any can.

    Args:
        provider: of its machines.
        store_url: of its models.
        is_shared: other servers may use its database, too.
        is_sent: whoever goes on with it is sent what its provider needs.

    >>> why_bound("aws", "file:///store")
    'its models and checkpoints are on the disk of that server'
    """
    if not is_sent and not capabilities_of(provider).moves:
        return f"it runs on {provider}, which only that server can go on with"
    if store_url.startswith("file://"):
        return "its models and checkpoints are on the disk of that server"
    return "" if is_shared else "its database is a file of that server"


def why_bound_of(row: Mapping[Any, Any], *, is_shared: bool) -> str:
    """The same of a run; empty of one that was not sent to a server, too."""
    if row["submitted_by"] is None or row["can_move"]:
        return ""
    why = why_bound(row["provider"], row["store_url"], is_shared=is_shared)
    return why or "its data are on that server only"


class RunReplicas:
    """Brings the files of runs here.

    Args:
        database: of the servers.
        home: of this server.
    """

    def __init__(self, database: Database, home: Home) -> None:
        self._database = database
        self._home = home

    def began_here(self, row: Mapping[Any, Any]) -> bool:
        """Whether it was accepted by this server, and no other has taken it over since."""
        return row["kept_by"] is None and row["home_id"] in ("", self._home.identity())

    def is_here(self, row: Mapping[Any, Any]) -> bool:
        """Whether this server has taken a run over, and no other has since."""
        is_ours: bool = row["kept_by"] == self._home.identity()
        return is_ours and (self._taken(row) / "identity").exists()

    def is_elsewhere(self, row: Mapping[Any, Any]) -> bool:
        """Whether another server has a run, or a machine of its own."""
        return row["can_move"] and not self.began_here(row) and not self.is_here(row)

    def taken(self, row: Mapping[Any, Any]) -> Home:
        """The home of a run that this server has taken over."""
        return replace(self._home, store_url=row["store_url"], root=self._taken(row))

    def files(self, row: Mapping[Any, Any]) -> RunFiles:
        """A replica of the files of a run that is elsewhere, as the database has them now."""
        from trainmaster.spec.locking import locked

        root = self._home.cache / REPLICAS / row["id"]
        make_private(root)
        with locked(root / _LAST):
            self._prepare(root, row)
            last = root / _LAST
            after = int(last.read_text()) if last.exists() else 0
            newest = pull(self._database, row["id"], root / "runs" / row["id"], after)
            if newest != after:
                write_private(last, str(newest).encode(), is_synced=False)
        return RunFiles(root)

    def access(self, row: Mapping[Any, Any], environ: Mapping[str, str]) -> ProviderPlace:
        """Keys of a run that is elsewhere, and what its provider must know of its machines: from its record.

        They are written into the home, for programs that read files. Those of runs that are over go.

        Raises:
            NotFoundError: none are kept.
            SealedError: they were sealed with another server's key.
        """
        from trainmaster.providers.base import ProviderPlace
        from trainmaster.spec.locking import locked

        root = self._home.root / ACCESS / row["id"]
        make_private(root)
        with locked(root.with_name(f".{row['id']}")):
            self._forget_access(row["id"])
            sealed = run_files.private(self._database, row["id"])
            key = self._key(environ)
            self._prepare(root, row)
            found = {
                name: key.open(data, private_place(row["id"], name))
                for name, data in sealed.items()
                if name != SECRETS
            }
            for name, data in found.items():
                if (
                    not (root / name).is_file() or (root / name).read_bytes() != data
                ):  # others read it just now
                    write_private(root / name, data)
        if not found:
            raise NotFoundError(
                f"{row['id']} is driven elsewhere, and no key of its machines is kept",
                "It may just begin there: try again in a moment. `trainmaster status` says how far it is.",
            )
        return ProviderPlace(root, row["home_id"], dict(environ))

    def _forget_access(self, but: str) -> None:
        """Keys lead nowhere any more when their run is over."""
        for place in (self._home.root / ACCESS).iterdir():
            if place.is_dir() and place.name != but:
                with suppress(NotFoundError):
                    if self._database.run_row(place.name)["state"] != State.DONE:
                        continue
                shutil.rmtree(place, ignore_errors=True)

    def code(self, row: Mapping[Any, Any]) -> Path:
        """The snapshot of a run's code, brought here if it is not.

        Raises:
            PublishError: it cannot be read from the object store.
        """
        if not row["can_move"] or self.began_here(row):
            return Path(row["code_path"])
        return bring_code(row["store_url"], Path(row["code_path"]).name, self._home.snapshots)

    def recipe(self, row: Mapping[Any, Any]) -> Recipe:
        """The recipe of a run, with a directory that is here."""
        from trainmaster.service.runs.stored_recipe import stored_recipe

        recipe = stored_recipe(row)
        if not row["can_move"] or self.began_here(row):
            return recipe
        return recipe.model_copy(update={"directory": self.code(row)})

    def prepare(
        self,
        run: str,
        recipe: Recipe,
        snapshot: Path,
        secrets: Mapping[str, Mapping[str, str]],
        environ: Mapping[str, str],
        *,
        has_rows: bool = False,
    ) -> dict[str, bytes] | None:
        """Make a new run one that any server can go on with.

        Args:
            run: its id.
            recipe: of the run.
            snapshot: of its code, which goes to the object store.
            secrets: per experiment, names and values.
            environ: the variables, which may name the key.
            has_rows: a server that goes on with it is given its rows.

        Returns:
            What the database is to keep of it, sealed; None of a run that stays on this server.
        """
        is_shared, url = has_rows or self._database.is_shared, self._home.store_url
        whys = [why_bound(each, url, is_shared=is_shared, is_sent=has_rows) for each in named_places(recipe)]
        if any(whys) or why_bound_by_data(recipe, snapshot):
            return None
        send_code(self._home.store_url, snapshot)
        key = self._key(environ)
        values = {name: value for each in secrets.values() for name, value in each.items()}
        return {SECRETS: key.seal(json.dumps(values).encode(), private_place(run, SECRETS))}

    def take_over(self, lease: Lease, environ: Mapping[str, str]) -> None:
        """Bring a run whose lease we hold into this server's home, if it is not there yet.

        Args:
            lease: of the run.
            environ: the variables, which may name the key.

        Raises:
            LeaseLostError: somebody else drives the run.
            SealedError: its keys were sealed with another server's key.
            PublishError: its code cannot be read from the object store.
        """
        row = self._database.run_row(lease.run)
        if not row["can_move"] or self.began_here(row) or self.is_here(row):
            return
        from trainmaster.artifacts import materialise
        from trainmaster.artifacts.scratch import made_whole

        key = self._key(environ)
        place = self._taken(row)
        with made_whole(place) as root:
            root.chmod(0o700)
            self._prepare(root, row)
            for name, sealed in run_files.private(self._database, row["id"]).items():
                if name != SECRETS:
                    write_private(root / name, key.open(sealed, private_place(row["id"], name)))
            run_directory = root / "runs" / row["id"]
            pull(self._database, row["id"], run_directory)
            materialise(self.code(row), run_directory / "code")
            shutil.rmtree(place, ignore_errors=True)  # of an earlier time that we had it
        run_files.keep_here(self._database, lease, self._home.identity())

    def replication(self, lease: Lease, environ: Mapping[str, str]) -> Replication | None:
        """What sends the files of a run while it is driven here; None of one that stays on its server."""
        row = self._database.run_row(lease.run)
        if not row["can_move"]:
            return None
        home = self._home if self.began_here(row) else self.taken(row)
        key = partial(self._key, environ)
        from trainmaster.service.driving.replication import Replication

        return Replication(self._database, lease, home, row["provider"], key)

    def with_secrets(self, row: Mapping[Any, Any], environ: Mapping[str, str]) -> Mapping[str, str]:
        """The variables with the values that a run was started with, where another server did that."""
        return {**self.kept_secrets(row, environ), **environ}

    def kept_secrets(self, row: Mapping[Any, Any], environ: Mapping[str, str]) -> dict[str, str]:
        """The values that a run was started with, if it is one that can move."""
        if not row["can_move"]:
            return {}
        sealed = run_files.private(self._database, row["id"]).get(SECRETS)
        if sealed is None:
            return {}
        key = self._key(environ)
        values: dict[str, str] = json.loads(key.open(sealed, private_place(row["id"], SECRETS)))
        return values

    def is_forgotten(self, row: Mapping[Any, Any]) -> bool:
        """Whether what was sealed of a run that can move was removed, as its end is long ago."""
        return bool(row["can_move"]) and not run_files.private(self._database, row["id"])

    def _key(self, environ: Mapping[str, str]) -> SealingKey:
        from trainmaster.service.driving.encryption import SealingKey

        return SealingKey.of(self._home.root, environ)

    def _taken(self, row: Mapping[Any, Any]) -> Path:
        return self._home.root / TAKEN / str(row["id"])

    def _prepare(self, root: Path, row: Mapping[Any, Any]) -> None:
        """Give a home of a run the name of the one it began in, and what providers find in a home."""
        from trainmaster.transport.host_keys import FILE_NAME  # few runs are taken over

        if not (root / "identity").exists():
            (root / "identity").write_text(f"{row['home_id']}\n")
        # A lab is this server's, and so are the settings of a place, whatever rents there.
        for name in ("lab", f"{row['provider']}.yaml"):
            own = self._home.root / name
            if own.exists() and not (root / name).is_symlink():
                # A home may be moved, or restored elsewhere; a cache may lie behind a link.
                is_below = root.is_relative_to(self._home.root)
                (root / name).symlink_to(os.path.relpath(own, root) if is_below else own)
        # Login nodes are known by the keys that this home has pinned; rented machines have pins of their own.
        if not (known := root / FILE_NAME).exists() and (own := self._home.root / FILE_NAME).exists():
            write_private(known, own.read_bytes())


def pull(database: Database, run: str, directory: Path, after: int = 0) -> int:
    """Write what was sent of a run's files since a piece; the id of the last one.

    A file that begins anew appears when it is whole; the others only grow.
    """
    drafts: dict[Path, Path] = {}
    while pieces := run_files.pieces(database, run, after):
        for number, piece in pieces:
            path = directory / piece.path
            if ".." in path.parts or not path.is_relative_to(directory):
                raise PublishError(f"{run}: a file of it is called {piece.path!r}", "Who wrote that?")
            if not piece.offset:
                path.parent.mkdir(parents=True, exist_ok=True)
                drafts[path] = path.with_name(f".{path.name}.pulled")
                drafts[path].write_bytes(b"")
            with drafts.get(path, path).open("r+b") as file:
                file.seek(piece.offset)
                file.write(piece.data)
                file.truncate()
            after = number
    for path, draft in drafts.items():
        draft.replace(path)
    return after


# --- code -----------------------------------------------------------------------------------------


def send_code(store_url: str, snapshot: Path) -> None:
    """Put a snapshot of code on an object store, by its digest, unless it is there.

    Raises:
        PublishError: the store cannot be written.
    """
    store, key = ObjectStore(store_url), _code_key(snapshot.name)
    there = store.info(key)
    if there is not None and time.time() - there.modified_s < _FRESH_S:
        return
    import tarfile  # a run of one's own needs none

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        archive.add(snapshot, ".")
    store.put(key, packed.getvalue())


def remove_unused_code(store_url: str, database: Database, before: float) -> int:
    """Remove code from an object store that no run names; how many.

    It is made fresh by what accepts a run with it (`send_code`), long before it is that old.

    Raises:
        PublishError: the store cannot be read or written.
        StoreError: the database cannot be used.
    """
    from trainmaster.db.removals import named_code

    store = ObjectStore(store_url)
    old = [each.key for each in store.details("code") if each.modified_s < before]
    if not old:
        return 0
    named = {_code_key(digest) for digest in named_code(database)}
    unused = [key for key in old if key not in named]
    store.delete(unused)
    return len(unused)


def bring_code(store_url: str, digest: str, snapshots: Path) -> Path:
    """Where a snapshot is in a home that it was brought to.

    Raises:
        PublishError: it is not on the store, or cannot be read.
    """
    from trainmaster.artifacts.scratch import made_whole
    from trainmaster.artifacts.unpacking import UnpackError, UnpackLimits, unpack

    place = snapshots / digest
    if place.is_dir():
        return place
    store = ObjectStore(store_url)
    packed = store.get(_code_key(digest), _MOST_CODE_BYTES)
    if packed is None:
        raise PublishError(
            f"{store.url_of(_code_key(digest))} is gone: the code of a run", "Was it deleted from the store?"
        )
    what = f"{store.url_of(_code_key(digest))} is damaged"
    with fails_as(what, "Start it anew.", PublishError, on=UnpackError), made_whole(place) as scratch:
        unpack(io.BytesIO(packed), "code.tar", scratch, UnpackLimits(2 * _MOST_CODE_BYTES))
        for path in scratch.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o555)  # a snapshot is never written to
    return place


def _code_key(digest: str) -> str:
    return f"code/{digest}.tar.gz"
