"""A gang in step: all compute, then wait for each other, as in an all-reduce; goes on from its checkpoint.

With a third argument they share so many seconds of work, which leave the processors alone.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
steps, kib = int(sys.argv[1]), int(sys.argv[2])
shared_s = float(sys.argv[3]) / size if len(sys.argv) > 3 else 0.0
saved = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]) / "at"
at = int(saved.read_text()) if saved.exists() else 0
port = int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(("", port))
    links = [server.accept()[0] for _ in range(size - 1)]
else:
    for _ in range(600):
        try:
            links = [socket.create_connection((os.environ["MASTER_ADDR"], port), 60)]
            break
        except OSError:
            time.sleep(0.1)
part = bytes(kib << 10)


def take(link):
    left = len(part) + 8
    data = b""
    while left:
        got = link.recv(min(left, 1 << 16))
        if not got:
            sys.exit("the other one is gone")
        data, left = data or got[:8], left - len(got)
    return data


while at < steps:
    time.sleep(shared_s)
    end = time.thread_time() + (0.0 if shared_s else 0.02)
    while time.thread_time() < end:
        pass
    if rank == 0:
        for link in links:
            take(link)
        for link in links:
            link.sendall(at.to_bytes(8, "big") + part)
    else:
        links[0].sendall(bytes(8) + part)
        at = int.from_bytes(take(links[0])[:8], "big")
    at += 1
    if rank == 0:
        with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
            file.write(json.dumps({"step": at, "at": time.time()}) + "\n")
    if at % 10 == 0:
        draft = saved.parent.parent / f"draft-{rank}"
        draft.write_text(str(at))
        draft.replace(saved)
