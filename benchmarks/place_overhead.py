"""What our providers add to the own time of a Slurm, a Kubernetes, a Ray and an OpenStack.

Beside their own clients, both ways take turns in one run: on a real Slurm of 8 nodes (`sbatch` of a job
whose steps hold each node, seen to run by `squeue`, `scancel` until it is gone), on a real Kubernetes of 2
nodes (8 pods: POST of the same manifests, GET until all run, DELETE of each until none is listed), on a real
Ray of 8 (a placement group with an actor in each bundle, asked once, removed), or on a real Nova for 8
servers (one POST, GET until all are ACTIVE, DELETE of each until none is listed), whose machines do not boot.
Ours is what a cluster's loop calls. Then, but on Nova, a run is kept warm: how long the next one takes, from
the command until the first line of its task, and how much memory a supervisor has.
`python benchmarks/place_overhead.py --place slurm` (or `kubernetes`, `ray`, `openstack`); as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from common import TRAINMASTER, machine, options, spread

from trainmaster.providers.base import Node, NodeRequest, NodeState, Provider, ProviderPlace
from trainmaster.providers.kubernetes.manifests import UNTIL
from trainmaster.providers.kubernetes.provider import kubernetes_provider
from trainmaster.providers.openstack.provider import openstack_provider
from trainmaster.providers.ray.provider import ray_provider
from trainmaster.providers.slurm.provider import slurm_provider
from trainmaster.testing.private_kubernetes import NAMESPACE, PrivateKubernetes
from trainmaster.testing.private_nova import PrivateNova, installed
from trainmaster.testing.private_ray import PrivateRay
from trainmaster.testing.private_slurm import PrivateSlurm

LOOK_S = 0.1
#: Of Nova.
FLAVOR = "m1.tiny"
#: A pod of which eight have room.
SMALL = "small"
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
PROGRAM = Path(__file__).parents[1] / "tests" / "contract" / "nova_process.py"
RECIPE = """
name: warm
engine: ssh
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {instance: m}
    command: echo begun; sleep 3
"""
#: As somebody would write it: the whole of it is inside one client.
BARE_RAY = """
import time
@ray.remote(num_cpus=1)
class Held:
    def there(self):
        return 1
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
began = time.perf_counter()
group = placement_group([{'CPU': 1}] * COUNT, 'STRICT_SPREAD')
held = [Held.options(scheduling_strategy=In(group, index)).remote() for index in range(COUNT)]
ray.get([each.there.remote() for each in held])
ready = time.perf_counter()
remove_placement_group(group)
print(ready - began, time.perf_counter() - ready)
"""


def until(condition: Callable[[], bool], deadline_s: float = 300.0) -> float:
    """Seconds until it holds."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > deadline_s:
            raise SystemExit("it does not get there")
        time.sleep(LOOK_S)
    return time.perf_counter() - began


def bare_slurm(slurm: PrivateSlurm, count: int) -> tuple[float, float]:
    """Seconds until a job runs with a step on each node, and until it is gone."""
    script = "srun --overlap sleep 600"
    began = time.perf_counter()
    words = ("-c1", "--mem=300M", f"-N{count}", "--ntasks-per-node=1", "-o", "/dev/null")
    slurm.command("sbatch", *words, "--wrap", script)
    until(lambda: f"{count}" in slurm.command("squeue", "-h", "-t", "R", "-o", "%D").split())
    until(lambda: len(slurm.command("squeue", "-h", "-s", "-o", "%i").split()) >= 2)
    ready = time.perf_counter()
    slurm.command("scancel", "-u", "root")
    until(partial(_is_free, slurm))
    return ready - began, time.perf_counter() - ready


def _is_free(slurm: PrivateSlurm) -> bool:
    return not slurm.command("squeue", "-h", "-o", "%i")


def bare_ray(ray: PrivateRay, count: int) -> tuple[float, float]:
    """The same of a placement group with actors."""
    there, gone = ray.said(BARE_RAY.replace("COUNT", str(count))).split()
    return float(there), float(gone)


def bare_openstack(nova: PrivateNova, count: int) -> tuple[float, float]:
    """The same of servers."""
    servers = partial(_servers, nova)
    flavors = nova.asked("GET", "/v2.1/flavors", user="me")["flavors"]
    (flavor,) = (each["id"] for each in flavors if each["name"] == FLAVOR)
    networks = nova.asked("GET", "/network/v2.0/networks", user="me")["networks"]
    network = next(each["id"] for each in networks if not each.get("router:external"))
    server = {"name": "bare", "flavorRef": flavor, "imageRef": IMAGE, "networks": [{"uuid": network}]}
    began = time.perf_counter()
    counts = {"min_count": count, "max_count": count}
    nova.asked("POST", "/v2.1/servers", {"server": server | counts}, user="me")
    until(lambda: [each["status"] for each in servers()].count("ACTIVE") == count)
    ready = time.perf_counter()
    for each in servers():
        nova.asked("DELETE", f"/v2.1/servers/{each['id']}", user="me")
    until(lambda: not servers())
    return ready - began, time.perf_counter() - ready


def _servers(nova: PrivateNova) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nova.asked("GET", "/v2.1/servers/detail", user="me")["servers"]
    return found


def bare_kubernetes(kubernetes: PrivateKubernetes, provider: Provider, count: int) -> tuple[float, float]:
    """The same of pods, as our provider would have them but for the time until which they are wanted."""
    request = NodeRequest("worker", count, SMALL, token="bare")
    manifests: list[dict[str, Any]] = [each["parameters"] for each in provider.dry_run("bare", [request])]
    for each in manifests:
        del each["metadata"]["annotations"][UNTIL]
    user = json.loads(kubernetes.kubeconfig.read_text())
    cluster, token = user["clusters"][0]["cluster"], user["users"][0]["user"]["token"]
    with httpx.Client(
        base_url=f"{cluster['server']}/api/v1/namespaces/{NAMESPACE}/",
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=cluster["certificate-authority"]),
        timeout=60.0,
    ) as client:

        def phases() -> list[str]:
            found = client.get("pods").raise_for_status().json()["items"]
            return [each["status"]["phase"] for each in found]

        began = time.perf_counter()
        for each in manifests:
            client.post("pods", json=each).raise_for_status()
        until(lambda: phases().count("Running") == count)
        ready = time.perf_counter()
        for each in manifests:
            client.delete(f"pods/{each['metadata']['name']}", params={"gracePeriodSeconds": "1"})
        until(lambda: not phases())
        return ready - began, time.perf_counter() - ready


def _no_pods(kubernetes: PrivateKubernetes) -> bool:
    return not kubernetes.api.all("pods")


def ours(
    provider: Provider,
    count: int,
    round: int,
    is_free: Callable[[], bool] = lambda: True,
    machine: str = "m",
) -> tuple[float, float]:
    """The same by our provider."""
    name = f"bench{round}"

    def nodes() -> list[Node]:
        return provider.nodes(name)

    began = time.perf_counter()
    provider.acquire(name, NodeRequest("worker", count, machine, token=f"worker-{round}"))
    until(lambda: all(node.state is NodeState.READY for node in nodes()))
    ready = time.perf_counter()
    provider.release(name)
    until(is_free)
    return ready - began, time.perf_counter() - ready


def warm_s(env: dict[str, str], folder: Path, place: str) -> tuple[list[float], list[float]]:
    """Seconds to the first line of runs on a warm cluster; MB of supervisors meanwhile."""
    (folder / "recipe.yaml").write_text(RECIPE)
    command = [TRAINMASTER, "run", "recipe.yaml", "--provider", place, "--yes", "--keep", "10m"]
    found, memory = list[float](), list[float]()
    for words in (*[command] * 4, command[:-2]):  # the last one gives it back
        began, said = time.perf_counter(), ""
        with subprocess.Popen(words, cwd=folder, env=env, stdout=-1, stderr=-2, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                said += line
                if line.startswith("begun"):
                    found.append(time.perf_counter() - began)
                    memory += supervisors_mb()
                    break
            said += running.stdout.read()
        if running.returncode:
            raise SystemExit(said)
    return found[1:], memory


def supervisors_mb() -> list[float]:
    """Proportional memory of each supervisor of a node."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "trainmaster.executors.supervisor.program" in " ".join(process.cmdline()):
                found.append(process.memory_full_info().pss / 1e6)
    return found


@contextlib.contextmanager
def slurm_place(root: Path) -> Iterator[tuple[PrivateSlurm, dict[str, str]]]:
    """A Slurm, and settings of somebody who may use it."""
    with PrivateSlurm(8) as slurm:
        (root / "slurm.yaml").write_text(f"scratch: {root}/s\nmachines:\n  m: {{cpus: 1, memory: 300MB}}\n")
        yield slurm, slurm.environ


@contextlib.contextmanager
def kubernetes_place(root: Path) -> Iterator[tuple[PrivateKubernetes, dict[str, str]]]:
    """The same of a Kubernetes, two nodes of which have room for eight small pods, or two of a core."""
    with PrivateKubernetes.installed(2) as kubernetes:
        sizes = f"machines:\n  m: {{cpus: 1, memory: 600MB}}\n  {SMALL}: {{cpus: 0.1, memory: 300MB}}\n"
        lines = f'image: work:lab\nvolumes: {{/usr: "/usr:ro"}}\n{sizes}'
        (root / "kubernetes.yaml").write_text(lines)
        yield kubernetes, {"KUBECONFIG": str(kubernetes.kubeconfig)}


@contextlib.contextmanager
def ray_place(root: Path) -> Iterator[tuple[PrivateRay, dict[str, str]]]:
    """The same of a Ray."""
    with PrivateRay(8) as ray:
        lines = f"{ray.way}scratch: {ray.scratch}\nmachines:\n  m: {{cpus: 1, memory: 300MB}}\n"
        (root / "ray.yaml").write_text(lines)
        yield ray, {}


@contextlib.contextmanager
def openstack_place(root: Path) -> Iterator[tuple[PrivateNova, dict[str, str]]]:
    """The same of an OpenStack."""
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or Path.home() / ".cache" / "trainmaster")
    with PrivateNova(installed(cache), PROGRAM) as nova:
        lines = f"image: {IMAGE}\nuser: admin\nflavors: {{{FLAVOR}: {{}}}}\n"
        (root / "openstack.yaml").write_text(lines)
        yield nova, nova.environ()


#: A place, and our provider of it.
PLACES: dict[str, tuple[Any, Callable[[ProviderPlace], Provider]]] = {
    "slurm": (slurm_place, slurm_provider),
    "kubernetes": (kubernetes_place, kubernetes_provider),
    "ray": (ray_place, ray_provider),
    "openstack": (openstack_place, openstack_provider),
}


def main() -> None:
    """Print all as JSON."""
    found = options(__doc__ or "", place="slurm", rounds=5)
    root = Path(tempfile.mkdtemp(prefix="tm-places-"))
    (root / "s").mkdir()
    opened, provider_of = PLACES[found.place]
    rows = list[tuple[tuple[float, float], tuple[float, float]]]()
    warm, memory = list[float](), list[float]()
    with opened(root) as (private, environ):
        provider = provider_of(ProviderPlace(root, "0123456789abcdef", environ))
        provider.check_up()  # what is started once is no part of a cluster
        for number in range(found.rounds):
            if isinstance(private, PrivateSlurm):
                is_free = partial(_is_free, private)
                rows.append((bare_slurm(private, 8), ours(provider, 8, number, is_free)))
            elif isinstance(private, PrivateKubernetes):
                own = bare_kubernetes(private, provider, 8)
                rows.append((own, ours(provider, 8, number, partial(_no_pods, private), SMALL)))
            elif isinstance(private, PrivateNova):
                gone = partial(lambda nova: not _servers(nova), private)
                rows.append((bare_openstack(private, 8), ours(provider, 8, number, gone, FLAVOR)))
            else:
                rows.append((bare_ray(private, 8), ours(provider, 8, number)))
        if found.place != "openstack":
            env = {**os.environ, **environ, "TRAINMASTER_HOME": str(root)}
            (root / "work").mkdir()
            warm, memory = warm_s(env, root / "work", found.place)
    names = ("there_s", "given_back_s")
    result: dict[str, Any] = {
        way: {name: spread([row[index][number] for row in rows]) for number, name in enumerate(names)}
        for index, way in enumerate(("bare", "ours"))
    }
    result["added_s"] = spread([sum(mine) - sum(own) for own, mine in rows])
    if warm:
        result |= {"warm_first_line_s": spread(warm), "supervisor_mb": spread(memory)}
    print(json.dumps({"benchmark": f"place_overhead {found.place}", "machine": machine(), **result}))


if __name__ == "__main__":
    main()
