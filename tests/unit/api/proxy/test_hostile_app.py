"""The proxy with an app whose answers are none, or more than one."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("h11", reason="the extra `apps` is not installed")
from evil_app import WAIT_S
from test_app_proxy import APP, SOCKET, run


@pytest.mark.parametrize(
    ("what", "statuses"),
    [
        *((each, {502}) for each in (
            "many-headers", "long-header", "two-lengths", "null", "return", "status", "switches",
        )),
        ("other-switch", {502}),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_not_passed_on(what, statuses):
    async def play(at):
        status, headers, _ = await at.ask("GET", APP + what)
        assert status in statuses
        assert "set-cookie" not in dict(headers)
        assert (await at.ask("GET", APP + "x"))[0] == 200, "others are answered as before"

    run(play)


@pytest.mark.parametrize("what", ["both-lengths", "more", "bad-chunk", "huge-chunk"])
def test_what_an_app_sends_beside_an_answer_is_no_answer_of_the_next_request(what):
    async def play(at):
        on = await at.connect()
        on[1].write(at.head("GET", APP + what).encode() + at.head("GET", APP + "next").encode())
        async with asyncio.timeout(WAIT_S):
            said = b""
            while b"/next" not in said and (piece := await on[0].read(65536)):
                said += piece
        assert said.count(b"HTTP/1.1 ") <= 2
        assert not said.endswith(b"evil")
        assert (await at.ask("GET", APP + "x"))[2].decode() == APP + "x"

    run(play)


def test_an_app_sets_no_cookies_of_parents_and_none_of_ours():
    async def play(at):
        _, headers, _ = await at.ask("GET", APP + "cookies-of-parents")
        kept = [value for name, value in headers if name == "set-cookie"]
        assert kept == [f"a=1; Path={APP}", f"b=1; Path={APP}", f"c=1; Path={APP}"]
        _, headers, _ = await at.ask("GET", APP + "folded")
        assert "set-cookie" not in dict(headers)

    run(play)


def test_an_app_asks_browsers_for_no_password_and_sends_them_nowhere():
    async def play(at):
        status, headers, _ = await at.ask("GET", APP + "login")
        assert (status, "www-authenticate" in dict(headers)) == (401, False)
        _, headers, _ = await at.ask("GET", APP + "refresh")
        assert "refresh" not in dict(headers)
        assert (await at.ask("GET", APP + "link"))[0] == 502

    run(play)


@pytest.mark.parametrize("what", ["open-header", "continues"])
def test_a_head_that_does_not_end_is_given_up(what):
    async def play(at):
        on = await at.connect()
        assert (await at.ask("GET", APP + what, on=on))[0] in (502, 504)
        at.app.release.set()
        assert (await at.ask("GET", APP + "x"))[0] == 200

    run(play, answer_s=0.2)


def test_an_answer_without_end_keeps_nobody_waiting_and_ends_with_its_reader():
    """Nothing of it is kept: who does not read holds the app up, not us."""

    async def play(at):
        deaf = [await at.connect() for _ in range(20)]
        for reader, writer in deaf:
            writer.write(at.head("GET", APP + "endless").encode())
            await reader.readuntil(b"\r\n\r\n")
        assert (await at.ask("GET", APP + "x"))[0] == 200
        at.app.closed.clear()
        for _, writer in deaf:
            writer.transport.abort()
        async with asyncio.timeout(WAIT_S):
            await at.app.closed.wait()

    run(play)


@pytest.mark.parametrize("what", ["x", "switches", "other-switch", "long-header", "redirect", "leave"])
def test_a_websocket_that_the_app_does_not_open_is_none(what):
    async def play(at):
        reader, writer = await at.connect()
        writer.write(at.head("GET", APP + what, *SOCKET).encode())
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        if what != "switches":  # what comes after its word is between the app and its page
            assert b" 101 " not in head.split(b"\r\n")[0]
        assert b"set-cookie" not in head.lower()

    run(play)
