"""Places that are asked while somebody types; slow ones do not pile up."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.service.places.answers import PlaceAnswers
from trainmaster.service.places.place import Place
from trainmaster.spec import Recipe
from trainmaster.spec.errors import ProviderError

SERVICE = cast("Any", SimpleNamespace(team="red"))
OTHERS = cast("Any", SimpleNamespace(team="blue"))
ONE, TWO = (
    Recipe.from_text(f"provider: hosts\nexperiments: {{train: {{command: 'true', retries: {n}}}}}")
    for n in (1, 2)
)


class World:
    """A place that answers when the test says so."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.now = 100.0
        self.asked: list[tuple[str, int]] = []
        self.answers = threading.Event()
        if not is_slow:
            self.answers.set()
        self.questions = PlaceAnswers(self._ask, 0.0 if is_slow else 60.0, lambda: self.now)

    def _ask(self, service: Any, recipe: Recipe, _environ: object) -> Place:
        self.asked.append((service.team, recipe.experiments["train"].retries))
        self.answers.wait(60.0)
        return Place(recipe.provider, f"{len(self.asked)} hosts")


def test_the_same_question_is_asked_once_for_a_while() -> None:
    world = World()
    assert world.questions(SERVICE, ONE, {}) is world.questions(SERVICE, ONE, {})
    assert world.questions(SERVICE, TWO, {}).machines == "2 hosts"
    assert world.questions(OTHERS, TWO, {}).machines == "3 hosts", "they have credentials of their own"
    world.now += 60.0
    world.questions(SERVICE, TWO, {})
    assert world.asked == [("red", 1), ("red", 2), ("blue", 2), ("red", 2)]


def test_a_slow_place_is_told_and_not_asked_again_before_it_has_answered() -> None:
    world = World(is_slow=True)
    assert world.questions(SERVICE, ONE, {}).refusal == "it has not answered for 0 s"
    world.now += 7.0
    for recipe in (ONE, TWO, ONE):
        assert world.questions(SERVICE, recipe, {}).refusal == "it has not answered for 7 s"
    world.answers.set()
    for thread in threading.enumerate():
        if thread.name == "ask a place":
            thread.join(60.0)
    assert world.questions(SERVICE, ONE, {}).machines == "1 hosts"
    assert world.asked == [("red", 1)]


def test_a_failure_is_that_of_the_question() -> None:
    def ask(*_: object) -> Place:
        raise ProviderError("no such account", "")

    with pytest.raises(ProviderError, match="no such account"):
        PlaceAnswers(ask, 60.0)(SERVICE, ONE, {})


def test_the_failure_of_one_recipe_is_not_that_of_another() -> None:
    may_fail, is_asked = threading.Event(), threading.Event()

    def ask(_service: object, recipe: Recipe, _environ: object) -> Place:
        if recipe is TWO:
            return Place(recipe.provider, "2 hosts")
        is_asked.set()
        may_fail.wait(60.0)
        raise ProviderError("no such account", "")

    def ask_first() -> None:
        with pytest.raises(ProviderError):
            questions(SERVICE, ONE, {})

    questions = PlaceAnswers(ask, 60.0)
    first = threading.Thread(target=ask_first)
    first.start()
    assert is_asked.wait(60.0)
    threading.Timer(0.05, may_fail.set).start()
    assert questions(SERVICE, TWO, {}).machines == "2 hosts"
    first.join(60.0)


def test_one_that_hangs_is_asked_again_after_some_minutes() -> None:
    world = World(is_slow=True)
    for seconds in (0.0, 170.0, 20.0, 20.0):
        world.now += seconds
        world.questions(SERVICE, ONE, {})
    world.answers.set()
    for thread in threading.enumerate():
        if thread.name == "ask a place":
            thread.join(60.0)
    assert world.asked == [("red", 1), ("red", 1)]
