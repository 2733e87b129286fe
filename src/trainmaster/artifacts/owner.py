"""Whose an artifact is: several homes may share an object store, and none takes or deletes what is another's.

At its start a run claims its name there (``STORE/runs/ID.json``, created only once), and each of its
manifests names the run, its home and when it was started. That is compared before anything is used or
removed.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from trainmaster.artifacts.manifest import JSON, Manifest
from trainmaster.dataclass import dataclass
from trainmaster.objects.errors import UnreachableStoreError
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError

#: Where a manifest's ``extra`` names the owner.
OWNER_KEY: Final = "owner"
CLAIMS_FOLDER: Final = "runs"


class ForeignArtifactError(PublishError):
    """It is another home's, or another run's of the same name."""


class LostStoreError(UnreachableStoreError):
    """A directory is not the store any more that a run has begun with; its disk may be mounted again."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that an artifact is of.

    Attributes:
        run: its id.
        home: the identity of its home.
        created_at: when it was started there, in seconds since 1970: a home may have been copied.
    """

    run: str
    home: str
    created_at: float

    def marked(self, extra: Mapping[str, JSON]) -> dict[str, JSON]:
        """Gives what a manifest keeps, with the owner."""
        return {**extra, OWNER_KEY: {"run": self.run, "home": self.home, "created_at": self.created_at}}

    def owns(self, manifest: Manifest) -> bool:
        """Says whether a manifest names this owner: only then may its artifact be deleted."""
        return manifest.extra.get(OWNER_KEY) == self.marked({})[OWNER_KEY]

    def require(self, manifest: Manifest, url: str) -> None:
        """Refuses an artifact that is not this run's.

        Args:
            manifest: of the artifact.
            url: where it is.

        Raises:
            ForeignArtifactError: it is another's.
        """
        if self.owns(manifest):
            return
        raise ForeignArtifactError(
            f"{url}: the {manifest.kind} there is of {_shown(manifest.extra.get(OWNER_KEY))}, and not of "
            f"{_shown(self.marked({})[OWNER_KEY])}.",
            "Nothing was taken or changed. Two homes use this store: start the recipe again with "
            "`trainmaster run`, which gives it another name, or set another TRAINMASTER_STORE.",
        )


def claim(store_url: str, owner: Owner, who: Mapping[str, str]) -> bool:
    """Takes the name of a run on an object store; False if somebody else has it.

    Args:
        store_url: where the run's artifacts will be.
        owner: the run.
        who: host and user, for people who look.

    Raises:
        PublishError: the store fails.
    """
    document = {"run": owner.run, "home": owner.home, "created_at": owner.created_at, **who}
    data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    return ObjectStore(store_url).put_if_absent(_claim_key(owner.run), data)


def claimed_by(store_url: str, owner: Owner) -> bool:
    """Whether the name of a run on an object store is this one's, or free: what lies there may be deleted.

    Raises:
        PublishError: the store cannot be read.
    """
    found = ObjectStore(store_url).get(_claim_key(owner.run))
    if found is None:
        return True
    try:
        document = json.loads(found)
        return (document["home"], document["created_at"]) == (owner.home, owner.created_at)
    except (ValueError, KeyError, TypeError):
        return False


def check_still_there(store_url: str, run: str) -> None:
    """Refuse a directory that has no claim of a run.

    The run would train from the beginning, as if it had saved nothing, and what it saves then would lie where
    nobody looks for it.

    Raises:
        LostStoreError: what to do.
        PublishError: it cannot be read.
    """
    store = ObjectStore(store_url)
    if not store.is_local or store.get(_claim_key(run)) is not None:
        return
    raise LostStoreError(
        f"{store_url} is not there, or is another one: {run} has saved there, and it knows nothing of it",
        "Is its disk mounted? If the home was moved, let its old path lead to it: ln -s NEW OLD. To train "
        "from the beginning, use `trainmaster run`.",
    )


def give_up_claim(store_url: str, owner: Owner) -> None:
    """Frees the name of a run that has never begun.

    Raises:
        PublishError: the store fails.
    """
    ObjectStore(store_url).delete([_claim_key(owner.run)])


def _claim_key(run: str) -> str:
    return f"{CLAIMS_FOLDER}/{run}.json"


def _shown(owner: JSON) -> str:
    if not isinstance(owner, Mapping):
        return "a run that it does not name"
    at = owner.get("created_at")
    try:
        started = f"{datetime.fromtimestamp(at, UTC):%F %T} UTC" if isinstance(at, int | float) else "?"
    except (ValueError, OverflowError, OSError):  # it comes from outside
        started = "?"
    return f"run {owner.get('run')} of home {str(owner.get('home'))[:8]}, started {started}"
