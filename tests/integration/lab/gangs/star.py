"""Workers in step with parameter servers, without TensorFlow: the chief counts, and saves how far they are.

With a third argument the workers share so many seconds of work, which leave the processors alone.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
servers, workers = config["cluster"]["ps"], config["cluster"]["worker"]
steps, part = int(sys.argv[1]), bytes((int(sys.argv[2]) << 10) // len(servers))
shared_s = float(sys.argv[3]) / len(workers) if len(sys.argv) > 3 else 0.0


def join(place):
    host, _, port = place.rpartition(":")
    for _ in range(600):
        try:
            link = socket.create_connection((host, int(port)), 60)
            link.sendall(kind[:1].encode())
            return link
        except OSError:  # it has not begun
            time.sleep(0.1)
    sys.exit(f"{place} does not answer")


def take(link, left):
    while left:
        got = link.recv(min(left, 1 << 16))
        if not got:
            sys.exit("the other one is gone")
        left -= len(got)


if kind == "ps":
    server = socket.create_server(("", int(servers[index].rpartition(":")[2])))
    links = [server.accept()[0] for _ in range(len(workers) + (index == 0))]
    chief = [link for link in links if link.recv(1) == b"c"]
    links = [link for link in links if link not in chief]
    while True:
        for link in links:
            take(link, len(part))
        for link in links:
            link.sendall(part)
        for link in chief:
            link.sendall(b".")
if kind == "worker":
    links = [join(place) for place in servers]
    while True:
        time.sleep(shared_s)
        end = time.thread_time() + (0.0 if shared_s else 0.02)
        while time.thread_time() < end:
            pass
        for link in links:
            link.sendall(part)
        for link in links:
            take(link, len(part))
saved = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]) / "at"
at = int(saved.read_text()) if saved.exists() else 0
link = join(servers[0])
while at < steps:
    take(link, 1)
    at += 1
    with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
        file.write(json.dumps({"step": at, "at": time.time()}) + "\n")
    if at % 10 == 0:
        draft = saved.parent.parent / "draft"
        draft.write_text(str(at))
        draft.replace(saved)
