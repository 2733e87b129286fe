"""`Approval`: what a person has said of an experiment that waits for that."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


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

    @property
    def words(self) -> str:
        """For people.

        >>> AwaitedApproval(("deploy",)).words
        "a person's approval of deploy"
        """
        return f"a person's approval of {', '.join(self.approval)}"
