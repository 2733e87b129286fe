"""What every notifier must keep: inherit `NotifierContract` and give it a notifier and what it has told."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from trainmaster.control.notes.notifier import Message, Notifier

ENDED = Message(
    "r-1.7.0", "r-1", 7, 1e9, "run", "RUNNING", "DONE", "FAILED", "it said:\n'ü' \"$HOME\" {x} \\ \0 `id`"
)
TASK = Message("r-1.8.0", "r-1", 8, 1e9, "task", after="DONE", experiment="a", task=0, attempt=1)


class NotifierContract:
    """Inherited by the tests of each notifier, ours and plug-ins'. Override all fixtures.

    Attributes:
        tells_words: what arrives is for people, as in a chat: `told` gives texts.
    """

    tells_words: ClassVar[bool] = False

    @pytest.fixture
    def make(self) -> Callable[[], Notifier]:
        """Makes the notifier under test, as for each message again."""
        raise NotImplementedError("give your tests a `make` fixture")

    @pytest.fixture
    def told(self) -> Callable[[], list[Mapping[str, Any]] | list[str]]:
        """What the receiver has got until now: the fields of each `Message`, as JSON has them; or texts."""
        raise NotImplementedError("give your tests a `told` fixture")

    @pytest.fixture
    def refusing(self) -> Notifier:
        """A notifier whose receiver takes nothing."""
        raise NotImplementedError("give your tests a `refusing` fixture")

    @pytest.fixture
    def hanging(self) -> Notifier:
        """A notifier whose receiver never answers."""
        raise NotImplementedError("give your tests a `hanging` fixture")

    def test_all_of_a_message_arrives(self, make: Callable[[], Notifier], told: Any) -> None:  # noqa: ANN401
        """Whatever its text has in it, and with what it has not. In words: whose it is, the end, and why."""
        for message in (ENDED, TASK):
            make().send(message, 10)
        if not self.tells_words:
            assert told() == [json.loads(message.json()) for message in (ENDED, TASK)]
            return
        ended, task = told()
        assert [word for word in (ENDED.run, "FAILED", "it said:") if word not in ended] == [], (
            f"not in {ended!r}"
        )
        assert [word for word in (TASK.run, "a/0", "DONE") if word not in task] == [], f"not in {task!r}"

    def test_it_is_sent_again_with_the_same_id(self, make: Callable[[], Notifier], told: Any) -> None:  # noqa: ANN401
        """By that the receiver knows it; people know it by its words."""
        make().send(TASK, 10)
        make().send(TASK, 10)
        first, again = told() if self.tells_words else [one["id"] for one in told()]
        assert first == again
        assert self.tells_words or first == TASK.id

    def test_what_is_not_taken_is_an_error(self, refusing: Notifier) -> None:
        """Else it would not be tried again."""
        with pytest.raises(Exception, match=re.compile(r".")):
            refusing.send(TASK, 10)

    def test_it_waits_no_longer_than_it_may(self, hanging: Notifier) -> None:
        """Others are waiting behind it."""
        raised: list[Exception] = []

        def send() -> None:
            try:
                hanging.send(TASK, 0.2)
            except Exception as error:  # noqa: BLE001 - whatever it is
                raised.append(error)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        sending.join(30)
        assert raised, "`send` was to take 0.2 s at most, by its `timeout_s`"
