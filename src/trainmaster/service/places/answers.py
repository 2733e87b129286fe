"""`PlaceAnswers`: places are asked for a page while somebody types, and slow ones do not pile up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.background import begun
from trainmaster.service.places.place import Ask, Place

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe

#: A page waits so long for a place.
_ANSWERS_S: Final = 5.0
#: The same question has the same answer for so long.
_KEPT_S: Final = 10.0
#: One that has no answer after so long is asked again.
_HANGS_S: Final = 180.0


@dataclass(slots=True)
class _Question:
    recipe: str
    at: float
    answer: Future[Place]


class PlaceAnswers:
    """Of a server. A place that is still being asked is not asked once more, whatever the next question is.

    Args:
        ask: a place.
        answers_s: how long to wait for one.
        clock: gives seconds.
    """

    def __init__(
        self, ask: Ask, answers_s: float = _ANSWERS_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._answers_s = answers_s
        self._clock = clock
        self._guard = threading.Lock()
        self._latest: dict[tuple[str, str], _Question] = {}

    def __call__(self, service: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> Place:
        """What a place would give; one that is slow is told as such."""
        text, until = recipe.model_dump_json(), self._clock() + self._answers_s
        while True:
            question = self._question(text, service, recipe, environ)
            if not wait([question.answer], max(until - self._clock(), 0.0)).done:
                since_s = self._clock() - question.at
                return Place(recipe.provider, refusal=f"it has not answered for {since_s:.0f} s")
            if question.recipe == text:  # an answer, or an error, of another one says nothing of this
                return question.answer.result()

    def _question(
        self, text: str, service: OpenHome, recipe: Recipe, environ: Mapping[str, str]
    ) -> _Question:
        """That which is open, or has just been answered; else a new one."""
        place, now = (service.team or "", recipe.provider), self._clock()
        with self._guard:
            latest = self._latest.get(place)
            age_s = 0.0 if latest is None else now - latest.at
            if latest is not None and not latest.answer.done() and age_s <= _HANGS_S:
                return latest
            if latest is None or latest.recipe != text or age_s > _KEPT_S:
                answer = begun(lambda: self._ask(service, recipe, environ), "ask a place")
                latest = self._latest[place] = _Question(text, now, answer)
            return latest
