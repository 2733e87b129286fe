from __future__ import annotations

import pytest

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.topics import Subscription


def read(notify):
    return Recipe.from_dict({"experiments": {"main": {"command": "true"}}, "notify": notify}).notify


def test_what_is_not_said_is_told_of_the_run_by_a_command():
    assert read([{"to": "cat"}])[0] == Subscription(notifier="command", to="cat", events=("run",))
    assert read([{"by": "chat", "to": "x", "events": "task"}])[0].events == ("task",)
    assert read([]) == ()


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ([{"by": "command"}], "no `to`; write what tells you, a command"),
        ([{"to": "x", "events": ["runs"]}], "did you mean 'run'?"),
        ([{"to": "x", "event": "run"}], "did you mean 'events'?"),
        (["me@example.org"], "write a mapping with the keys by, to, events"),
        ({"to": "x"}, "write a list, such as"),
        (None, "write a list, such as"),
    ],
)
def test_mistakes_are_explained(notify, said):
    with pytest.raises(RecipeError) as caught:
        read(notify)
    assert said in str(caught.value)
