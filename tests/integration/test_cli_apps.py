"""What one person opens in two terminals, without a server, is one app."""

from __future__ import annotations

import signal
import urllib.request

from trainmaster.testing.private_server import free_ports

SERVES = "echo hello >index.html; touch $NOTES/up; exec python -m http.server --bind 127.0.0.1 $PORT"


def address(terminal):
    """Where a browser is let in."""
    terminal.until(lambda: "http" in terminal.out, "it says where")
    return next(line for line in terminal.out.splitlines() if line.startswith("http"))


def answer(url):
    """What a browser is shown."""
    jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with jar.open(url, timeout=60) as found:
        return found.read().decode()


def states(tm):
    return [(each["app"], each["state"]) for each in tm.call("apps", "--json").json["apps"]]


def test_it_ends_with_the_last_terminal_that_leads_to_it(tm):
    (free_port,) = free_ports(1)
    run = tm.start("run", tm.task(SERVES.replace("$PORT", str(free_port))))
    name = run.run_id()
    tm.until((tm.notes / "up").exists)
    one, two = (tm.start("open", name, str(free_port)) for _ in range(2))
    assert "hello" in answer(address(one))
    first, second = address(one), address(two)
    ((app, state),) = states(tm)
    assert state == "RUNNING"
    one.send(signal.SIGTERM)
    one.wait(0)
    assert states(tm) == [(app, "RUNNING")]
    assert "hello" in answer(second)
    assert first.split("/")[2] != second.split("/")[2], "each terminal has a proxy of its own"
    three = tm.start("open", name, str(free_port))
    address(three)
    two.kill()
    assert states(tm) == [(app, "RUNNING")]
    three.send(signal.SIGINT)
    three.wait(0)
    assert states(tm) == [(app, "DONE")]
    run.send(signal.SIGINT)
    run.wait(130)
