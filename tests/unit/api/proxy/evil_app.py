"""An app that does what apps should not, and the proxy in front of it, in one event loop."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket

from trainmaster.api.proxy.grants import Grants
from trainmaster.api.proxy.proxy import AppProxy
from trainmaster.service.apps.app_access import AppWay
from trainmaster.service.users.caller import UnknownCallerError
from trainmaster.spec.errors import NotFoundError

WAIT_S = 60
_OK = b"HTTP/1.1 200 OK\r\n"
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\n"
_UPGRADED = b"upgrade: websocket\r\nconnection: upgrade\r\n"
#: Answers that are none, by what is asked for.
LIES = {
    "many-headers": _OK + b"".join(b"x-%d: y\r\n" % number for number in range(20_000)),
    "long-header": _OK + b"x: " + b"y" * (1 << 20) + b"\r\ncontent-length: 0\r\n\r\n",
    "open-header": _OK + b"x: y\r\n",
    "two-lengths": _OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "both-lengths": _OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "more": _OK + b"content-length: 1\r\n\r\nabHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
    "bad-chunk": _OK + b"transfer-encoding: chunked\r\n\r\nzz\r\na\r\n0\r\n\r\n",
    "huge-chunk": _OK + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\na",
    "null": _OK + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
    "return": _OK + b"x: a\rset-cookie: trainmaster=x\r\ncontent-length: 0\r\n\r\n",
    "folded": _OK + b"x: a\r\n set-cookie: trainmaster=x\r\ncontent-length: 0\r\n\r\n",
    "status": b"HTTP/1.1 999999 No\r\ncontent-length: 0\r\n\r\n",
    "switches": _SWITCH + _UPGRADED + b"\r\n" + _OK + b"\r\n",
    "other-switch": _SWITCH + b"upgrade: h2c\r\nconnection: upgrade\r\n\r\nPRI * HTTP/2.0\r\n",
    "cookies-of-parents": _OK
    + b"set-cookie: a=1; Domain=127.0.0.1; Path=/\r\nset-cookie: b=1; domain=.1; path=/apps/\r\n"
    + b"set-cookie: __Host-trainmaster-app=x; Path=/; Secure\r\nset-cookie: trainmaster-app=good; Path=/\r\n"
    + b"set-cookie:  Trainmaster =x\r\nset-cookie: c=1; Path=/apps/evil-1/../other/\r\n"
    + b"content-length: 0\r\n\r\n",
    "login": b"HTTP/1.1 401 No\r\nwww-authenticate: Basic realm=trainmaster\r\ncontent-length: 0\r\n\r\n",
    "refresh": _OK + b"refresh: 0; url=https://evil.example.org/\r\ncontent-length: 0\r\n\r\n",
    "link": _OK
    + b"location: https://evil.example.org/\r\ncontent-location: //evil\r\ncontent-length: 0\r\n\r\n",
}


class EvilApp:
    """Answers by its path; `seen` has the heads of all requests."""

    def __init__(self):
        self.seen = []
        self.connections = 0
        self.asked, self.closed = asyncio.Event(), asyncio.Event()
        self.release = asyncio.Event()

    async def start(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def connected(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.seen.append(head.decode())
                if not await self.answer(head, reader, writer):
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            self.closed.set()

    async def answer(self, head, reader, writer):
        method, target, _ = head.split(b"\r\n")[0].split(b" ")
        what = target.partition(b"?")[0].rpartition(b"/")[2].decode()
        body = b""
        if b"content-length: " in head:
            body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        elif b"transfer-encoding: chunked" in head:
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        if what == "hang":
            self.asked.set()
            await self.release.wait()
        if what == "dies" or (what == "fickle" and self.connections == 1):
            return False
        if what == "half":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            return False
        if what == "nonsense":
            writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
            return False
        if what == "ws":
            key = head[head.lower().index(b"sec-websocket-key: ") + 19 :].split(b"\r\n")[0]
            accept = base64.b64encode(
                hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            ).decode()
            writer.write(
                f"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                f"sec-websocket-accept: {accept}\r\nsec-websocket-protocol: v1.kernel\r\n"
                f"set-cookie: trainmaster=x\r\n\r\nhello".encode()
            )
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            return False
        if what == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        if what == "continues":
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
                await writer.drain()
        if what in LIES:
            writer.write(LIES[what])
            await writer.drain()
            if what.startswith("open"):
                self.asked.set()
                await self.release.wait()
            return False
        if what == "large":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for number in range(64):
                writer.write(b"10000\r\n" + bytes([number]) * 65536 + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return True
        more = {
            "redirect": ("302 Found", "location: /api/v1/runs\r\n"),
            "leave": ("302 Found", "location: https://evil.example.org/\r\n"),
            "cookies": (
                "200 OK",
                "set-cookie: a=1; Path=/\r\nset-cookie: b=2\r\nset-cookie: trainmaster=x\r\n",
            ),
        }
        status, headers = more.get(what, ("200 OK", ""))
        text = body or target
        close = what == "once"
        headers += "connection: close\r\n" if close else ""
        writer.write(f"HTTP/1.1 {status}\r\n{headers}content-length: {len(text)}\r\n\r\n".encode())
        writer.write(b"" if method == b"HEAD" else text)
        return not close


class OneGate:
    """Lets in requests with the cookie ``good``, to the app ``evil-1``."""

    cookie = "trainmaster-app"

    def __init__(self, port):
        self.port, self.uses, self.asked = port, 0, 0
        self.allowed, self.more = {"good"}, {}

    def enter(self, ticket):
        if ticket != "once":
            raise UnknownCallerError("the ticket is not known", "Open the app again.")
        return "evil-1", "good", 60.0

    def admit(self, app, cookies, bearer):
        self.asked += 1
        if not self.allowed & {*cookies, bearer}:
            raise UnknownCallerError("you are not known here", "Open the app again.")
        if app != "evil-1":
            raise NotFoundError("there is no such app", "")
        return AppWay(self.port, "own", **self.more)

    def used(self, app):
        self.uses += 1


class Setting:
    """The app, the gate, the proxy, and a client of bytes."""

    def __init__(self, **options):
        self.answer_s = options.pop("answer_s", 60.0)
        self.hosts = options.pop("hosts", None)
        self.options = options

    async def __aenter__(self):
        self.app = EvilApp()
        self.gate = OneGate(await self.app.start())
        self.proxy = AppProxy(Grants(self.gate, **self.options), answer_s=self.answer_s, hosts=self.hosts)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await self.proxy.start(listener)
        self.writers = []
        return self

    async def __aexit__(self, *_):
        for writer in self.writers:
            writer.close()
        self.app.release.set()
        await self.proxy.stop()
        self.app.server.close()

    async def connect(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        self.writers.append(writer)
        return reader, writer

    def head(self, method, path, *headers, cookie="good", host=""):
        kept = [f"cookie: {self.proxy._grants.cookie}={cookie}"] if cookie else []
        host = host or f"127.0.0.1:{self.port}"
        return "\r\n".join([f"{method} {path} HTTP/1.1", f"host: {host}", *kept, *headers, "", ""])

    async def ask(self, method, path, *headers, body=b"", cookie="good", on=None, host=""):
        """Status, headers, body."""
        reader, writer = on or await self.connect()
        writer.write(self.head(method, path, *headers, cookie=cookie, host=host).encode() + body)
        return await read_answer(reader, method)


async def read_answer(reader, method="GET"):
    async with asyncio.timeout(WAIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = [tuple(line.split(": ", 1)) for line in lines]
        names = {name.lower(): value for name, value in headers}
        if method == "HEAD":
            body = b""
        elif "content-length" in names:
            body = await reader.readexactly(int(names["content-length"]))
        elif names.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = b""
        return int(status.split()[1]), headers, body
