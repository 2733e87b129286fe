"""Waiting in a process for something to change."""

from trainmaster.service.listeners import Listeners


def test_only_who_listens_to_a_name_is_called_and_only_meanwhile():
    listeners, called = Listeners(), []
    with (
        listeners.listening("a", lambda: called.append(1)),
        listeners.listening("a", lambda: called.append(2)),
    ):
        listeners.tell("b")
        listeners.tell("a")
    listeners.tell("a")
    assert called == [1, 2]
    assert listeners._calls == {}
