"""What the proxy in front of apps costs: requests a second and milliseconds, the app alone and through it.

``python benchmarks/apps.py [--seconds 5] [--connections 8] [--app tensorboard|small]``

Everything is on this machine: with two cores, the client takes one of them. What counts is the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe, Process
from pathlib import Path

from trainmaster.api.proxy.grants import Grants
from trainmaster.api.proxy.proxy import AppProxy
from trainmaster.service.apps.app_access import AppWay
from trainmaster.service.runs.metric_export import EventFiles

PREFIX = "/apps/bench/"


class OpenGate:
    """Lets everybody in."""

    cookie = "trainmaster-app"

    def __init__(self, port):
        self.port = port

    def enter(self, ticket):
        """Into the one app."""
        return "bench", "x", 60.0

    def admit(self, app, cookies, bearer):
        """To the one app."""
        return AppWay(self.port)

    def used(self, app):
        """That is known."""


def proxy(app_port, pipe):
    async def main():
        listener = socket.create_server(("127.0.0.1", 0))
        await AppProxy(Grants(OpenGate(app_port))).start(listener)
        pipe.send(listener.getsockname()[1])
        while True:
            if await asyncio.to_thread(pipe.recv) is None:
                return
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(used.ru_utime + used.ru_stime)

    asyncio.run(main())


def small(pipe):
    """An app that answers at once: the worst case for whatever is in front of it."""
    body = b"x" * 1000
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 1000\r\n\r\n" + body

    async def connected(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def main():
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def tensorboard(directory):
    """The real one, with ten runs of a thousand points."""
    files = EventFiles(Path(directory))
    files.write(
        {"experiment": "train", "task": task, "attempt": 1, "step": step, "loss": 1 / (step + 1)}
        for task in range(10)
        for step in range(1000)
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--host", "127.0.0.1",
         "--port", str(port), "--path_prefix", PREFIX.rstrip("/")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    return process, port


async def ask(reader, writer, path):
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"content-length: " in head:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    elif b"chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return b"connection: close" not in head


async def load(port, path, connections, seconds):
    """Requests a second of so many connections, and the times of all, sorted."""
    times, end = [], time.perf_counter() + seconds

    async def one():
        on = None
        while time.perf_counter() < end:
            began = time.perf_counter()
            on = on or await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
            if not await ask(*on, path):
                on[1].close()
                on = None
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return len(times) / (time.perf_counter() - began), sorted(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--app", choices=["tensorboard", "small"], default="tensorboard")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.app == "tensorboard":
            app, port = tensorboard(directory)
        else:
            ours, theirs = Pipe()
            app = Process(target=small, args=(theirs,), daemon=True)
            app.start()
            port = ours.recv()
        ours, theirs = Pipe()
        front = Process(target=proxy, args=(port, theirs), daemon=True)
        front.start()
        through = ours.recv()
        path = f"{PREFIX}data/environment"
        measure(ours, port, through, path, options)
        ours.send(None)
        app.terminate()


def measure(pipe, port, through, path, options):
    rates, medians, cpu_s, count = ([], []), ([], []), 0.0, 0
    for _ in range(3):  # in turns: what else the machine does hits both
        for number, each in enumerate((port, through)):
            if number:
                pipe.send(True)
                before = pipe.recv()
            rate, times = asyncio.run(load(each, path, options.connections, options.seconds / 3))
            rates[number].append(rate)
            _, single = asyncio.run(load(each, path, 1, options.seconds / 3))
            medians[number].append(statistics.median(single) * 1000)
            if number:
                pipe.send(True)
                cpu_s += pipe.recv() - before
                count += len(times) + len(single)
    alone, proxied = (statistics.median(each) for each in rates)
    alone_ms, proxied_ms = (statistics.median(each) for each in medians)
    print(f"{options.app}, {options.connections} connections")
    print(f"requests/s: alone {alone:.0f}, through the proxy {proxied:.0f}, ratio {proxied / alone:.2f}")
    print(
        f"median: alone {alone_ms:.2f} ms, through {proxied_ms:.2f} ms, added {proxied_ms - alone_ms:.2f} ms"
    )
    print(f"CPU of the proxy: {cpu_s / count * 1000:.3f} ms a request")


if __name__ == "__main__":
    main()
