"""A server's socket."""

import errno
import socket
from types import SimpleNamespace

from trainmaster.api.serving import Listening, _bound, _Mishaps


def test_who_connects_gets_a_socket_that_says_it_is_tcp():
    """Else asyncio leaves Nagle's algorithm on, and each answer after the first takes 40 ms."""
    with _bound(Listening()) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP


def test_connections_that_cannot_be_taken_are_told_of_once_a_minute(caplog):
    now, passed_on = [0.0], []
    loop = SimpleNamespace(default_exception_handler=passed_on.append)
    mishaps = _Mishaps(lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        mishaps(loop, {"exception": OSError(errno.EMFILE, "Too many open files")})
    assert [each.getMessage() for each in caplog.records] == [
        "connections cannot be taken: [Errno 24] Too many open files"
    ] * 2
    mistake = {"message": "a mistake of ours", "exception": ValueError("x")}
    mishaps(loop, mistake)
    assert passed_on == [mistake]
