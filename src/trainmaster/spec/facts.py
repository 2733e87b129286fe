"""What is found out of a run while it is driven, and holds for whoever drives it later."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum

from trainmaster.dataclass import dataclass


class Fact(StrEnum):
    """Kinds of that; each has a name beside it, and a text."""

    VOLUME = "volume"  #: By what the recipe calls a volume: its URI with the version, or the set built in.
    APPROVAL = "approval"  #: By experiment: an `Approval` as JSON; a person has said so, not the driver.
    CANCELLED = "cancelled"  #: By task (``sweep/3``): who wants it ended; a person has said so, too.
    ENVIRONMENT = "environment"  #: By experiment: Python, platform and packages as JSON.
    SIZE = "size"  #: By experiment and attempt (``train/2``), from which on it holds: a `GangSize` as JSON.
    TRIALS = "trials"  #: By experiment: those of an earlier run with which its search goes on, as JSON.


#: Writes down what was found, unless something is known already; what is known from now on.
Record = Callable[[Fact, str, str], str]


class RunFacts:
    """What is known of one run; the first look decides. Threads share it.

    Args:
        known: what its record says, by kind and name.
        record: writes into that; what has no record (a measurement, a test) is known in here only.
    """

    def __init__(
        self,
        known: Mapping[tuple[Fact, str], str] | None = None,
        record: Record = lambda _kind, _name, value: value,
    ) -> None:
        self._known = dict(known or {})
        self._record = record
        self._guard = threading.Lock()
        self._looking: dict[tuple[Fact, str], threading.Lock] = {}

    def settled(self, kind: Fact, name: str, look: Callable[[], str]) -> str:
        """What is known; where that is nothing, what is found now, once it is recorded.

        Args:
            kind: of what.
            name: of what.
            look: finds it out; only one thread does so at a time, the others wait for what it finds.

        Raises:
            LeaseLostError: somebody else drives the run.
            StoreError: it cannot be recorded.
            Exception: what ``look`` raises; then nothing is known.
        """
        key = (kind, name)
        with self._guard:
            if (found := self._known.get(key)) is not None:
                return found
            looking = self._looking.setdefault(key, threading.Lock())
        with looking:
            if (found := self._known.get(key)) is None:
                found = self._record(kind, name, look())
                self._known[key] = found
        return found

    def trials(self, experiment: str) -> str:
        """Those of an earlier run with which the search of an experiment goes on; empty without."""
        return self._known.get((Fact.TRIALS, experiment), "")

    def sizes(self, experiment: str) -> dict[int, GangSize]:
        """What was changed of the size of an experiment's gang, by the first attempt that has it."""
        found = {}
        for (kind, name), value in list(self._known.items()):
            of, _, attempt = name.rpartition("/")
            if kind is Fact.SIZE and of == experiment:
                found[int(attempt)] = GangSize(**json.loads(value))
        return found


@dataclass(frozen=True, slots=True)
class GangSize:
    """How many workers and parameter servers attempts have, where that was changed while the run went on.

    Attributes:
        workers, servers: how many.
        at: Unix seconds when that was decided.
        why: for people.
    """

    workers: int
    servers: int
    at: float
    why: str = ""

    def to_json(self) -> str:
        """For the fact's row."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer of a person.

    Attributes:
        is_given: the experiment may begin; else it ends.
        by: who has answered.
        at: Unix seconds.
        why: in their words; may be empty.
    """

    is_given: bool
    by: str
    at: float
    why: str = ""

    @property
    def words(self) -> str:
        """For people.

        >>> Approval(False, "ada", 0.0, "the curve is odd").words, Approval(True, "ada", 0.0).words
        ('denied by ada: the curve is odd', 'approved by ada')
        """
        return f"{'approved' if self.is_given else 'denied'} by {self.by}{': ' * bool(self.why)}{self.why}"

    @classmethod
    def from_json(cls, text: str) -> Approval:
        """What `to_json` has made."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """As it is stored and sent."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class AwaitedApproval:
    """What a run waits for of which nothing runs until a person has answered.

    Attributes:
        approval: names of experiments.
    """

    approval: tuple[str, ...]
    note = ""  # the experiment has said so

    @property
    def words(self) -> str:
        """For people.

        >>> AwaitedApproval(("deploy",)).words
        "a person's approval of deploy"
        """
        return f"a person's approval of {', '.join(self.approval)}"


@dataclass(frozen=True, slots=True)
class QueuedMachines:
    """What a run waits for whose provider has others before it.

    Attributes:
        queue: why its machines are not there yet, as their provider says.
    """

    queue: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people.

        >>> QueuedMachines(("job 7: Priority",)).words
        'machines: job 7: Priority'
        """
        return f"machines: {'; '.join(self.queue)}"

    @property
    def note(self) -> str:
        """The line that says that it waits."""
        return f"waits for {self.words}"
