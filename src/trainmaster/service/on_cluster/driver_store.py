"""`DriverStore`: on a run's object store, what drives it, and what that driver last said of it.

Below ``driver/RUN``: a *claim* for each driver, created once, with a number that counts up; the highest one
drives. Below each claim lies what its driver has published: ``news-N`` (what the run has grown by) and
``state``, which is written after the news that it names. A driver that has been able to write nothing for
`GIVES_UP_S` ends itself, and no other claims before `LOST_S`; both by the store's own clock or shorter. One
that is told to end, as its machine goes, says so, and is lost at once.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.db.run_transfer import RunGrowth, RunRows
from trainmaster.objects import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.spec.facts import Approval

#: How often a driver says that it is there, in seconds.
BEAT_S: Final = 5.0
#: One that could not say so for so long drives no more.
GIVES_UP_S: Final = 40.0
#: Others may take it for lost then.
LOST_S: Final = 60.0
_MOST_BYTES: Final = 1 << 30
_CLAIM: Final = "claim-"


@dataclass(frozen=True, slots=True)
class Published:
    """What a driver has said last.

    Attributes:
        rows: of the run.
        news: how many pieces of news there are by then.
        is_over: it drives no more, as the run is over: its machine is given back.
        age_s: since it said so, by the store's clock; infinite if it has left, so that others go on at once.
    """

    rows: RunRows
    news: int
    is_over: bool
    age_s: float


@dataclass(slots=True)
class DriverStore:
    """Claims and words of the drivers of one run.

    Args:
        store_url: of the run's models.
        run: its id.
        claim: the number of the driver that is meant.
    """

    store_url: str
    run: str
    claim: int
    _store: ObjectStore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Connects at the first use."""
        self._store = ObjectStore(self.store_url)

    @classmethod
    def free(cls, store_url: str, run: str) -> DriverStore:
        """The number that the next driver takes.

        Raises:
            PublishError: the store cannot be read.
        """
        names = [each.key.rpartition("/")[2] for each in ObjectStore(store_url).list(f"driver/{run}")]
        taken = [int(name.removeprefix(_CLAIM)) for name in names if name.startswith(_CLAIM)]
        return cls(store_url, run, max(taken, default=0) + 1)

    # --- what drives ---------------------------------------------------------------------------------

    def take(self, who: str) -> bool:
        """Be the driver with this number; False if somebody else is.

        Raises:
            PublishError: the store cannot be written.
        """
        return self._store.put_if_absent(self._key_of(self.claim), json.dumps({"by": who}).encode())

    def is_taken(self) -> bool:
        """Whether there is a driver with this number.

        Raises:
            PublishError: the store cannot be read.
        """
        return self._store.exists(self._key_of(self.claim))

    def is_followed(self) -> bool:
        """Whether a later driver has taken over.

        Raises:
            PublishError: the store cannot be read.
        """
        return self._store.exists(self._key_of(self.claim + 1))

    def next(self) -> DriverStore:
        """The driver after this one."""
        return DriverStore(self.store_url, self.run, self.claim + 1)

    # --- what it says -------------------------------------------------------------------------------

    def put_news(self, number: int, news: RunGrowth) -> None:
        """Publish what the run has grown by.

        Raises:
            PublishError: the store cannot be written.
        """
        self._put(f"news-{number:08d}", asdict(news))

    def news(self, number: int) -> RunGrowth:
        """What was published with a number.

        Raises:
            PublishError: it is not there, or cannot be read.
        """
        found = self._get(f"news-{number:08d}")
        if found is None:
            raise PublishError(
                f"{self._store.url_of(self._key(f'news-{number:08d}'))} is gone", "Was it deleted?"
            )
        return RunGrowth(**found)

    def put_state(self, rows: RunRows, news: int, *, is_over: bool, is_left: bool = False) -> None:
        """Publish how the run is, after its news; also a sign of life.

        Raises:
            PublishError: the store cannot be written.
        """
        self._put("state", {"rows": asdict(rows), "news": news, "is_over": is_over, "is_left": is_left})

    def state(self, probe: Callable[[], float] | None = None) -> Published | None:
        """What was published last; None if nothing was yet.

        Raises:
            PublishError: it cannot be read.
        """
        detail = self._store.info(self._key("state"))
        found = None if detail is None else self._get("state")
        if detail is None or found is None:
            return None
        since_s = max((probe or self.now)() - detail.modified_s, 0.0)
        age_s = math.inf if found.get("is_left") else since_s
        return Published(RunRows(**found["rows"]), found["news"], found["is_over"], age_s)

    def claimed_s_ago(self) -> float:
        """How long ago this driver began, by the store's clock; 0 if it has not.

        Raises:
            PublishError: the store cannot be read.
        """
        detail = self._store.info(self._key_of(self.claim))
        return 0.0 if detail is None else max(self.now() - detail.modified_s, 0.0)

    def now(self) -> float:
        """The store's clock, as objects are dated by it.

        Raises:
            PublishError: the store cannot be written.
        """
        key = f"driver/{self.run}/clock"
        self._store.put(key, str(time.time()).encode())
        detail = self._store.info(key)
        return time.time() if detail is None else detail.modified_s

    # --- what it is asked -----------------------------------------------------------------------------

    def wish(self, reason: str) -> None:
        """Ask it to end the run.

        Raises:
            PublishError: the store cannot be written.
        """
        self._put("wish", {"stop": reason})

    def wished(self) -> str | None:
        """Why the run is asked to end; None if it is not.

        Raises:
            PublishError: the store cannot be read.
        """
        found = self._get("wish")
        return None if found is None else str(found["stop"])

    def put_cancelled_tasks(self, by: Mapping[str, str]) -> None:
        """Tell it which tasks people want ended: all of them, each with who does.

        Raises:
            PublishError: the store cannot be written.
        """
        self._put("cancelled-tasks", by)

    def cancelled_tasks(self) -> Mapping[str, str]:
        """Which tasks people want ended, and who does.

        Raises:
            PublishError: the store cannot be read.
        """
        return self._get("cancelled-tasks") or {}

    def put_answer(self, experiment: str, said: Approval) -> None:
        """Tell it what a person says of an experiment.

        Raises:
            PublishError: the store cannot be written.
        """
        self._put(f"answer-{experiment}", asdict(said))

    def answer(self, experiment: str) -> Approval | None:
        """What a person has said of it; None as yet.

        Raises:
            PublishError: the store cannot be read.
        """
        found = self._get(f"answer-{experiment}")
        return None if found is None else Approval(**found)

    def remove(self) -> None:
        """Remove what was published of the run, when all of it is in its home.

        The claim stays until the last, so that no other driver begins.

        Raises:
            PublishError: the store cannot be written.
        """
        self._store.delete_all(f"driver/{self.run}/{self.claim:06d}")

    # --- private ------------------------------------------------------------------------------------

    def _key_of(self, claim: int) -> str:
        return f"driver/{self.run}/{_CLAIM}{claim:06d}"

    def _key(self, name: str) -> str:
        return f"driver/{self.run}/{self.claim:06d}/{name}"

    def _put(self, name: str, value: object) -> None:
        self._store.put(self._key(name), gzip.compress(json.dumps(value).encode(), 1))

    def _get(self, name: str) -> dict[str, Any] | None:
        data = self._store.get(self._key(name), _MOST_BYTES)
        if data is None:
            return None
        found: dict[str, Any] = json.loads(gzip.decompress(data))
        return found
