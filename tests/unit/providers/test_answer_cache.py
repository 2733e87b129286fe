"""What a place said is asked for once, until it is old, damaged, or the answer to something else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainmaster.providers.answer_cache import cached_answer
from trainmaster.spec.errors import ProviderError, UsageError


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    cpus: int


class Place:
    def __init__(self, file: Path) -> None:
        self.file, self.asked = file, 0

    def answer(self, asked: str = "me at home", lacks: str = "") -> list[Kind]:
        def check(found: list[Kind]) -> None:
            if lacks not in ["", *(each.name for each in found)]:
                raise UsageError("it is not there")

        return cached_answer(self.file, list[Kind], asked, 60.0, self.ask, check)

    def ask(self) -> list[Kind]:
        self.asked += 1
        return [Kind("small", self.asked)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "new" / "kinds.json")


def test_it_is_asked_once(place: Place) -> None:
    assert place.answer() == place.answer() == [Kind("small", 1)]
    assert place.file.stat().st_mode & 0o777 == 0o600


def test_it_is_asked_again_when_the_answer_is_old_or_of_another_time(place: Place) -> None:
    place.answer()
    for passed_s, numbers in ((30, 1), (90, 2), (-30, 3)):
        at = place.file.stat().st_mtime - passed_s
        os.utime(place.file, (at, at))
        assert place.answer() == [Kind("small", numbers)]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"asked": "me at home", "answer": [{}]}'])
def test_it_is_asked_again_when_the_file_is_damaged(place: Place, content: str) -> None:
    place.answer()
    place.file.write_text(content)
    assert place.answer() == [Kind("small", 2)]


def test_it_is_asked_again_for_something_else_and_for_what_it_lacks(place: Place) -> None:
    place.answer()
    assert place.answer("you") == [Kind("small", 2)]
    assert place.answer("you", lacks="large") == [Kind("small", 3)], "it may be new there"
    assert place.answer("you", lacks="small") == [Kind("small", 3)]


def test_what_cannot_be_asked_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> list[Kind]:
        raise ProviderError("it is away", "Try again.")

    monkeypatch.setattr(place, "ask", refused)
    with pytest.raises(ProviderError, match="away"):
        place.answer()
    assert not place.file.exists()
