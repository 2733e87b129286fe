"""What our provider adds to Infrastructure Manager's own time: 2 machines made, seen as running, given back.

The real IM 2.0.0 (`make im`) rents in a lab. Both ways take turns: the bare calls of IM's REST API (create
with the same document, ask until all machines run and have addresses, destroy, ask until it is gone), and our
provider as a cluster's loop asks it. IM asks its cloud only every few seconds, so two infrastructures differ
by more than we add. A watcher asks for the same infrastructure beside ours, ten times a second; what counts
is how long after IM had it we knew (`overhead_s`, target: below 1 s per cluster). Run it with
`python benchmarks/im_overhead.py`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from clusters import lab
from common import machine, options, spread

from trainmaster.cluster.provider_looks import BOOT_LOOK_S
from trainmaster.providers.base import NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.im.client import ImClient, ImRefusedError
from trainmaster.providers.im.credentials import ImCredentials, read_credentials
from trainmaster.providers.im.provider import ImProvider, im_offers
from trainmaster.providers.im.radl import machine_of
from trainmaster.providers.im.settings import ImSettings, read_settings
from trainmaster.spec.errors import ProviderError
from trainmaster.testing.private_im import PrivateIm, installed
from trainmaster.transport.http_calls import HttpAnswer, Send, send_request

T = TypeVar("T")
TYPE = "m4.xlarge"
LOOK_S = 0.1


def answered(call: Callable[[], T]) -> T:
    """What a call gives, asked again until there is an answer: this machine may be slow."""
    while True:
        try:
            return call()
        except ImRefusedError:
            raise
        except ProviderError:
            time.sleep(LOOK_S)


def is_ready(client: ImClient, name: str, count: int) -> bool:
    """Whether IM has all machines, and an address of each."""
    states = answered(lambda: client.state(name)).machines
    if len(states) < count or not all(state in ("running", "configured") for state in states.values()):
        return False
    return all(machine_of(answered(lambda n=n: client.machine(name, n))).address for n in states)


def is_gone(client: ImClient, name: str) -> bool:
    """Whether IM has it no more."""
    try:
        answered(lambda: client.state(name))
    except ImRefusedError as refused:
        return refused.is_gone
    return False


def until(condition: Callable[[], bool], deadline_s: float = 600.0) -> float:
    """Seconds until it holds."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > deadline_s:
            raise SystemExit("IM does not get there")
        time.sleep(LOOK_S)
    return time.perf_counter() - began


def bare(client: ImClient, radl: str, count: int) -> dict[str, float]:
    """IM's own time."""
    began = time.perf_counter()
    name = client.create(radl)
    until(lambda: is_ready(client, name, count))
    ready = time.perf_counter()
    client.destroy(name)
    until(lambda: is_gone(client, name))
    return {"create_s": ready - began, "destroy_s": time.perf_counter() - ready}


class Watcher(threading.Thread):
    """Sees when IM itself has what we wait for."""

    def __init__(self, client: ImClient, count: int) -> None:
        super().__init__(daemon=True)
        self._client, self._count = client, count
        self.ready = self.gone = 0.0

    def run(self) -> None:
        """Look all the time."""
        until(lambda: bool(answered(self._client.infrastructures)))
        (name,) = answered(self._client.infrastructures)
        until(lambda: is_ready(self._client, name, self._count))
        self.ready = time.perf_counter()
        until(lambda: is_gone(self._client, name))
        self.gone = time.perf_counter()


def ours(provider: ImProvider, client: ImClient, request: NodeRequest, sent: list[float]) -> dict[str, float]:
    """Our time, and how much later than IM's it is."""
    watcher = Watcher(client, request.count)
    watcher.start()
    sent.clear()
    began, cpu = time.perf_counter(), time.thread_time()
    answered(lambda: provider.acquire("bench", request))  # a cluster's loop asks again, too
    while any(node.state is not NodeState.READY for node in answered(lambda: provider.nodes("bench"))):
        time.sleep(BOOT_LOOK_S)
    ready = time.perf_counter()
    until(lambda: watcher.ready > 0)
    released = time.perf_counter()
    answered(lambda: provider.release("bench"))
    gone = time.perf_counter()
    cpu_s = time.thread_time() - cpu
    watcher.join(600)
    before_s, known_s = sent[0] - began, max(ready - watcher.ready, 0.0)
    given_back_s = max(gone - watcher.gone, 0.0)
    return {
        "create_s": ready - began,
        "destroy_s": gone - released,
        "cpu_s": cpu_s,
        "before_the_first_call_s": before_s,
        "known_after_im_s": known_s,
        "gone_after_im_s": given_back_s,
        "overhead_s": before_s + known_s + given_back_s,
    }


def main() -> None:
    """Print both ways as JSON."""
    found = options(__doc__ or "", machines=2, rounds=5)
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
    with lab() as cloud:
        access = json.loads((cloud.home / "lab" / "lab.json").read_text())
        with PrivateIm(installed(cache), access["endpoint_url"], [(TYPE, 4, 16384, 0.2)]) as im:
            settings, credentials = user(cloud.home, im.url, access)
            client, sent = ImClient(im.url, credentials), list[float]()
            provider = ImProvider(
                settings,
                credentials,
                im_offers(settings, credentials.clouds),
                ProviderPlace(cloud.home, "bench"),
                send=noting(sent),
            )
            request = NodeRequest("worker", found.machines, TYPE, "ec2", token="bench")
            radl = provider.dry_run("bare", [request])[0]["parameters"]["radl"]
            rows = [
                (bare(client, radl, found.machines), ours(provider, client, request, sent))
                for _ in range(found.rounds)
            ]
    result = {
        way: {name: spread([row[index][name] for row in rows]) for name in rows[0][index]}
        for index, way in enumerate(("bare", "ours"))
    }
    print(json.dumps({"benchmark": "im_overhead", "machine": machine(), **result}))


def noting(sent: list[float]) -> Send:
    """Sends, and notes when."""

    def send(*call: Any) -> HttpAnswer:
        sent.append(time.perf_counter())
        return send_request(*call)

    return send


def user(home: Path, url: str, access: dict[str, str]) -> tuple[ImSettings, ImCredentials]:
    """Settings and credentials of somebody with one cloud."""
    credentials = home / "im.auth"
    credentials.touch(0o600)
    credentials.write_text(
        "type = InfrastructureManager; username = me; password = of-mine\n"
        f"id = ec2; type = EC2; username = {access['access_key_id']}; "
        f"password = {access['secret_access_key']}\n"
    )
    (home / "prices.csv").write_text(
        "provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,as_of\n"
        f"im,ec2,{TYPE},4,16,0.2,2026-11-01\n"
    )
    image = f"aws://{access['region']}/{access['image_id']}"
    file = home / "im.yaml"
    file.write_text(
        f"url: {url}\nprices: prices.csv\nclouds:\n  ec2: {{image: '{image}', disk: 10GiB, user: tm}}\n"
    )
    return read_settings(file), read_credentials(credentials)


if __name__ == "__main__":
    main()
