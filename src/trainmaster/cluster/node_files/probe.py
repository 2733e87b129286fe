"""`NodeProbe`: whether anything was left in directories of nodes, asked for many attempts in one go."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_links import NodeLinks
from trainmaster.transport.errors import CommandError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess

_TIMEOUT_S: Final = 60.0
_BEGIN, _END = "@@begin", "@@end"
# What goes wrong is something, too: then it is looked at more closely.
_ASK: Final = 't() { n=$1; shift; [ -z "$(find -H "$@" -mindepth 1 -print -quit 2>&1)" ] || echo "$n"; }'


@dataclass(slots=True)
class _Question:
    directories: Sequence[str]
    answer: bool | None = None
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.answer is not None or self.error is not None

    def told(self) -> bool:
        if self.error is not None:
            raise self.error
        return bool(self.answer)


class NodeProbe:
    """Asks nodes; threads share it, and the answers that are awaited.

    Args:
        links: to the nodes.
    """

    def __init__(self, links: NodeLinks) -> None:
        self._links = links
        self._changed = threading.Condition()
        self._waiting: dict[str, list[_Question]] = {}
        self._busy: set[str] = set()

    def are_empty(self, access: NodeAccess, directories: Sequence[str]) -> bool:
        """Whether directories are there and nothing at all is in them.

        Raises:
            CommandError: the node answers something else.
            UnreachableError: it cannot be reached.
        """
        question = _Question(directories)
        node = access.id
        with self._changed:
            self._waiting.setdefault(node, []).append(question)
            self._changed.wait_for(lambda: question.is_over or node not in self._busy)
            if question.is_over:
                return question.told()
            self._busy.add(node)
            questions = self._waiting.pop(node)
        try:
            for each, answer in zip(questions, self._ask(access, questions), strict=True):
                each.answer = answer
        except Exception as error:  # noqa: BLE001 - each of them gets it
            for each in questions:
                each.error = error
        finally:
            with self._changed:
                self._busy.discard(node)
                self._changed.notify_all()
        return question.told()

    def _ask(self, access: NodeAccess, questions: Sequence[_Question]) -> list[bool]:
        calls = "".join(f"t {n} {shlex.join(each.directories)}; " for n, each in enumerate(questions))
        command = f"{_ASK}; echo {_BEGIN}; {calls}echo {_END}"
        result = self._links.use(access, lambda link: link.run(command, timeout_s=_TIMEOUT_S))
        lines = result.out.partition(f"{_BEGIN}\n")[2].splitlines()
        if result.code != 0 or lines[-1:] != [_END]:
            raise CommandError(f"{access.target.shown}: {result.last_words}")
        full = set(lines[:-1])
        return [str(number) not in full for number in range(len(questions))]
