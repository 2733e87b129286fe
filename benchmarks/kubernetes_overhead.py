"""What our provider adds to a Kubernetes' own time: 8 pods created, seen to run, and deleted.

The real Kubernetes 1.20 of two nodes (`make kubernetes`). Both ways take turns: bare requests by httpx (the
same manifests, created one after the other, the list asked for until all run), and our provider, asked as
often. `overhead_s` is the difference of two neighbours; target: below 1 s per cluster. `python
benchmarks/kubernetes_overhead.py`.
"""

from __future__ import annotations

import json
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from common import machine, options, spread

from trainmaster.providers.base import NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.kubernetes.provider import KubernetesProvider, kubernetes_provider
from trainmaster.testing.private_kubernetes import NAMESPACE, PrivateKubernetes

SETTINGS = (
    'image: work:lab\ngrace: 1s\nvolumes: {/usr: "/usr:ro"}\nmachines:\n  node: {cpus: 0.05, memory: 64MB}\n'
)
LOOK_S = 0.1


def until(condition: Callable[[], bool], deadline_s: float = 300.0) -> None:
    """Ask until it holds."""
    deadline = time.perf_counter() + deadline_s
    while not condition():
        if time.perf_counter() > deadline:
            raise SystemExit("Kubernetes does not get there")
        time.sleep(LOOK_S)


def client_of(kubeconfig: Path) -> httpx.Client:
    """What sends bare requests about the pods of the namespace."""
    told = json.loads(kubeconfig.read_text())
    cluster, token = told["clusters"][0]["cluster"], told["users"][0]["user"]["token"]
    return httpx.Client(
        base_url=f"{cluster['server']}/api/v1/namespaces/{NAMESPACE}/",
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=cluster["certificate-authority"]),
        timeout=60.0,
    )


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """How long it takes, and how much of a processor, in seconds."""
    began, worked = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - worked


def bare(client: httpx.Client, manifests: list[dict]) -> tuple[float, float]:
    """Kubernetes' own time until all pods run; then they are deleted."""
    names = {each["metadata"]["name"] for each in manifests}

    def pods() -> list[dict]:
        found = client.get("pods").raise_for_status().json()["items"]
        return [each for each in found if each["metadata"]["name"] in names]

    def work() -> None:
        for each in manifests:
            client.post("pods", json=each).raise_for_status()
        until(lambda: sum(each["status"]["phase"] == "Running" for each in pods()) == len(names))

    took = timed(work)
    for name in names:
        client.delete(f"pods/{name}", params={"gracePeriodSeconds": "0"})
    until(lambda: not pods())
    return took


def ours(provider: KubernetesProvider, cluster: str, request: NodeRequest) -> tuple[float, float]:
    """The same by the provider."""

    def work() -> None:
        provider.acquire(cluster, request)
        until(lambda: all(node.state is NodeState.READY for node in provider.nodes(cluster)))

    took = timed(work)
    provider.release(cluster)
    until(lambda: all(node.state is NodeState.GONE for node in provider.nodes(cluster)))
    return took


def main() -> None:
    """Print JSON."""
    given = options(__doc__ or "", runs=5, pods=8)
    with PrivateKubernetes.installed(2) as kubernetes, tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "kubernetes.yaml").write_text(SETTINGS)
        place = ProviderPlace(home, "b" * 20, {**os.environ, "KUBECONFIG": str(kubernetes.kubeconfig)})
        provider = kubernetes_provider(place)
        rows = []
        with client_of(kubernetes.kubeconfig) as client:
            for number in range(given.runs + 1):  # the first is for what is only done once
                request = NodeRequest("worker", given.pods, "node", token=f"t{number}")
                shown = provider.dry_run(f"bare-{number}", [request])
                manifests = [each["parameters"] for each in shown]
                for each in manifests:
                    each["metadata"]["annotations"].pop("trainmaster/until", None)
                pair = [
                    lambda m=manifests: bare(client, m),
                    lambda n=number, r=request: ours(provider, f"r-{n}", r),
                ]
                took = [work() for work in (pair if number % 2 else reversed(pair))]
                rows.append(took if number % 2 else took[::-1])
        kept = rows[1:]
        result = {
            "pods": given.pods,
            "bare_s": spread([row[0][0] for row in kept]),
            "ours_s": spread([row[1][0] for row in kept]),
            "overhead_s": spread([row[1][0] - row[0][0] for row in kept]),
            "cpu_bare_s": statistics.median(row[0][1] for row in kept),
            "cpu_ours_s": statistics.median(row[1][1] for row in kept),
            "machine": machine(),
        }
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
