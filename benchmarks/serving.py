"""What the proxy in front of services adds: a replica alone and through it, beside each other in one run.

``python benchmarks/serving.py [--seconds 6] [--connections 8]``

The replica is the inference server with a `serve.py` that doubles. What counts is the difference of the
medians of one connection; everything is on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe, Process
from pathlib import Path

from trainmaster.api.proxy.proxy import AppProxy
from trainmaster.api.proxy.services import ServiceProxy
from trainmaster.service.endpoints.endpoints import ReadyReplica

BODY = json.dumps({"inputs": [{"name": "x", "shape": [8], "datatype": "FP32", "data": [0.5] * 8}]})
ASKED = "v2/models/m/infer"


class OpenGate:
    """Lets everybody on this machine ask one replica."""

    is_open = True

    def __init__(self, port):
        self.found = [ReadyReplica("ep-1-0", "job-1", None, port, True, "m@1", 0)]

    def targets(self, name, bearer, team):
        """The one replica."""
        return self.found

    def turned_away(self, name, bearer, team):
        """Never."""

    def report(self, in_flight):
        """That is known."""


def proxy(port, pipe):
    async def main():
        listener = socket.create_server(("127.0.0.1", 0))
        await AppProxy(None, ServiceProxy(OpenGate(port))).start(listener)
        pipe.send(listener.getsockname()[1])
        while True:
            if await asyncio.to_thread(pipe.recv) is None:
                return
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(used.ru_utime + used.ru_stime)

    asyncio.run(main())


def replica(directory):
    Path(directory, "serve.py").write_text("def predict(model, inputs): return {'y': inputs['x'] * 2}\n")
    command = [sys.executable, "-m", "trainmaster.inference", "--port", "0", "--name", "m"]
    process = subprocess.Popen([*command, "--model-dir", directory], stderr=subprocess.PIPE, text=True)
    return process, int(re.search(r"port (\d+)", process.stderr.readline())[1])


async def ask(reader, writer, path):
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(BODY)}\r\n\r\n"
    writer.write((head + BODY).encode())
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in answer:
        raise SystemExit(f"not answered: {answer.decode()}")
    await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))


async def load(port, path, connections, seconds):
    """Requests a second of so many connections, and the times of all."""
    times, end = [], time.perf_counter() + seconds

    async def one():
        on = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            began = time.perf_counter()
            await ask(*on, path)
            times.append(time.perf_counter() - began)
        on[1].close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return len(times) / (time.perf_counter() - began), times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        process, port = replica(directory)
        ours, theirs = Pipe()
        front = Process(target=proxy, args=(port, theirs), daemon=True)
        front.start()
        try:
            measure(ours, ((port, f"/{ASKED}"), (ours.recv(), f"/services/m/{ASKED}")), options)
            ours.send(None)
        finally:
            process.terminate()
            process.wait()


def measure(pipe, ways, options):
    rates, medians, cpu_s, count = ([], []), ([], []), 0.0, 0
    for _ in range(6):  # in turns: what else the machine does hits both
        for number, (port, path) in enumerate(ways):
            pipe.send(True)
            before = pipe.recv()
            rate, times = asyncio.run(load(port, path, options.connections, options.seconds / 6))
            _, single = asyncio.run(load(port, path, 1, options.seconds / 6))
            pipe.send(True)
            used = pipe.recv() - before
            rates[number].append(rate)
            medians[number].append(statistics.median(single) * 1000)
            if number:
                cpu_s, count = cpu_s + used, count + len(times) + len(single)
    alone, through = (statistics.median(each) for each in rates)
    alone_ms, through_ms = (statistics.median(each) for each in medians)
    ratio, added_ms = through / alone, through_ms - alone_ms
    print(f"{options.connections} connections: {alone:.0f} requests/s, through {through:.0f}: {ratio:.2f}")
    print(f"median: alone {alone_ms:.2f} ms, through {through_ms:.2f} ms, added {added_ms:.2f} ms")
    print(f"CPU of the proxy: {cpu_s / count * 1000:.3f} ms a request")


if __name__ == "__main__":
    main()
