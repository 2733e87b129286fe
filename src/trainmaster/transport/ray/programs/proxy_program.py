"""What speaks with Ray: sent to a Python that has it (3.9 or newer), and run there as long as it is heard.

A cluster has one detached actor, its keeper (`ClusterActor`). The keeper asks for placement groups, and
starts an actor in each of their bundles (`BundleActor`). Ray ends all of these when the keeper ends, which it
does when its lease is over. `RayProxyServer` reads calls as lines of JSON, and answers them in any order.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Ray gives it to its head only: with that all is lost in any case.
_HEAD = {"node:__internal_head__": 0.001}
_CALLS = 100
_PARTING_S = 15.0
_LOOK_S = 15.0
#: A node that did not suit is asked for again then: somebody may have made room on its disk.
_UNFIT_S = 600.0
#: In which what is placed begins: Ray itself tries for ever.
_BEGIN_S = 600.0


class _Light:
    """In a class of actors it has their processes import no more than they need, before their first call."""

    def __reduce__(self) -> tuple[Callable[[], _Light], tuple[()]]:
        return _lighten, ()


def _lighten() -> _Light:
    """Have Ray import no pydantic, starlette or pyarrow for a first call (.7 s): ours have JSON only."""
    with contextlib.suppress(ImportError):  # of another version
        from ray.util import serialization_addons

        serialization_addons.apply = lambda _: None
    return _Light()


class BundleActor:
    """An actor in a bundle; through it calls reach our processes on its node."""

    light = _Light()

    def __init__(self, node_process: str, directory: str, lease_s: float, kept: str, shared: str) -> None:
        import ray

        if not ray.get_gpu_ids():  # else Ray may not set it, and all of the node's would be seen
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        ours, theirs = socket.socketpair()
        about = ["trainmaster-deadman", directory, str(lease_s), kept, shared, _gcs_address()]
        command = [sys.executable, "-ISu", "-c", node_process, *about]
        done = subprocess.run(
            command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        theirs.close()
        #: Why nothing of ours can be on this node.
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        self._unfit = "".join(said or ["it cannot begin"]) if done.returncode else ""
        self._stream = ours

    def about(self) -> dict[str, Any]:
        """Where it is, and what it has."""
        import getpass

        import ray

        context = ray.get_runtime_context()
        return {
            "address": ray.util.get_node_ip_address(),
            "node": context.get_node_id(),
            "gpus": len(ray.get_gpu_ids()),
            "user": getpass.getuser(),
            "python": sys.executable if sys.version_info >= (3, 11) else "",
            "unfit": self._unfit,
        }

    def stay(self) -> None:
        """Until what is ours there has ended."""
        self._stream.recv(1)

    def call(self, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """Have the process on the node do something, by a line of its own; its answer."""
        ours, theirs = socket.socketpair()
        found = {"error": "what was ours there has ended"}
        with ours, theirs, contextlib.suppress(OSError, ValueError):
            ours.sendall(json.dumps({"do": do, "args": args}).encode() + b"\n")
            socket.send_fds(self._stream, [b"."], [theirs.fileno()])
            theirs.close()
            found = json.loads(ours.makefile("rb").readline())
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["result"]

    def end(self) -> None:
        """End all that is ours there, and wait for it."""
        self._stream.shutdown(socket.SHUT_WR)
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        poll.poll(int(_PARTING_S * 1000))


class ClusterActor:
    """The keeper of one cluster: asks for its placement groups and holds them."""

    light = _Light()

    def __init__(
        self, name: str, namespace: str, node_process: str, kept: str, shared: str, lease_s: float
    ) -> None:
        self._name, self._namespace = name, namespace
        self._node_process, self._kept, self._shared = node_process, kept, shared
        self._lock = threading.RLock()
        self._groups: list[dict[str, Any]] = []
        self._bundles: list[dict[str, Any]] = []
        #: Address of each node that does not suit, and until when it is left out.
        self._unfit: dict[str, tuple[str, float]] = {}
        self._until, self._over = 0.0, 0.0
        self.renew(0.0, lease_s)  # who has asked for it may be gone by now
        self._mark = os.urandom(3).hex()
        threading.Thread(target=self._watch, daemon=True).start()

    def take(self, parts: list[dict[str, Any]], until: float, lease_s: float) -> dict[str, Any]:
        """Have machines for each part: in bundles of the same kind that are free, else in a new group."""
        with self._lock:
            self.renew(until, lease_s)
            wanted = []
            for part in parts:
                there = sum(bundle["token"] == part["token"] for bundle in self._bundles)
                wanted += [part] * (part["count"] - there if there == 0 else 0)
            for part in list(wanted):
                place = self._free(part)
                if place is not None:
                    wanted.remove(part)
                    self._begin(part, place)
            if wanted:
                self._free_groups()  # their nodes do not suit, or they have other kinds: others may have them
                self._group(wanted)
            return self.look()

    def look(self) -> dict[str, Any]:
        """All machines that were ever there, as they are; and until when they are wanted."""
        leaving, now = _leaving(), time.monotonic()
        with self._lock:
            for bundle in self._bundles:
                self._update(bundle)
            bundles = [self._said(bundle, leaving, now) for bundle in self._bundles]
            return {"until": self._until, "seats": bundles, "unfit": list(self._left_out().values())}

    def renew(self, until: float, lease_s: float) -> None:
        """Live so long from now on."""
        self._until, self._over = max(until, self._until), time.monotonic() + lease_s

    def give(self, ids: list[str]) -> None:
        """Give machines back; a group whose last one it was goes."""
        with self._lock:
            self.look()
            given = [bundle for bundle in self._bundles if bundle["id"] in ids and not bundle["over"]]
            self._end(given)
            self._free_groups()

    def end(self) -> None:
        """Give all back."""
        with self._lock:
            self.give([bundle["id"] for bundle in self._bundles])
            self._over = 0.0

    # --- private ---------------------------------------------------------------------------------------

    def _left_out(self) -> dict[str, str]:
        """Addresses of nodes that do not suit, by id."""
        now = time.monotonic()
        return {node: address for node, (address, until) in self._unfit.items() if now < until}

    def _free_groups(self) -> None:
        """Give back groups that hold nothing."""
        from ray.util import remove_placement_group

        for group in list(self._groups):
            if not any(bundle["group"] is group and not bundle["over"] for bundle in self._bundles):
                remove_placement_group(group["pg"])
                self._groups.remove(group)

    def _free(self, part: dict[str, Any]) -> tuple[dict[str, Any], int] | None:
        unfit = self._left_out()
        for group in self._groups:
            for index, kind in enumerate(group["kinds"]):
                taken = any(
                    bundle["group"] is group and bundle["index"] == index
                    and (not bundle["over"] or bundle["about"].get("node") in unfit)
                    for bundle in self._bundles
                )  # fmt: skip
                if kind == part["kind"] and not taken:
                    return group, index
        return None

    def _group(self, wanted: list[dict[str, Any]]) -> None:
        from ray.util.placement_group import placement_group

        held = [bundle["about"]["node"] for bundle in self._bundles if bundle["about"] and not bundle["over"]]
        others = [*held, *self._left_out()]
        apart = {"ray.io/node-id": f"!in({','.join(others)})"} if others else {}
        labels = [{**part["kind"]["labels"], **apart} for part in wanted]
        more = {"bundle_label_selector": labels} if any(labels) else {}
        bundles = [part["kind"]["resources"] for part in wanted]
        name = f"{self._name}.{self._mark}.{len(self._bundles)}"
        group = {"kinds": [part["kind"] for part in wanted]}
        group["pg"] = placement_group(bundles, "STRICT_SPREAD", name, **more)
        self._groups.append(group)
        for index, part in enumerate(wanted):
            self._begin(part, (group, index))

    def _begin(self, part: dict[str, Any], place: tuple[dict[str, Any], int]) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, index = place
        id = f"{self._name}-{self._mark}.{len(self._bundles)}"
        asked = dict(part["kind"]["resources"])
        actor = (
            ray.remote(BundleActor)
            .options(
                name=id, namespace=self._namespace, num_cpus=asked.pop("CPU", 0),
                num_gpus=asked.pop("GPU", 0), memory=asked.pop("memory", None), resources=asked,
                max_restarts=0, max_concurrency=_CALLS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group["pg"], index),
            )
            .remote(self._node_process, f"{part['scratch']}/{id}", part["lease_s"], self._kept, self._shared)
        )  # fmt: skip
        bundle = {
            "id": id, "token": part["token"], "role": part["role"], "group": group, "index": index,
            "actor": actor, "asked": actor.about.remote(), "stays": actor.stay.remote(), "about": {},
            "state": "STARTING", "reason": "", "placed": 0.0, "started": 0.0, "ended": 0.0, "over": False,
        }  # fmt: skip
        self._bundles.append(bundle)

    def _update(self, bundle: dict[str, Any]) -> None:
        import ray

        if bundle["over"]:
            return
        try:
            if not bundle["about"] and ray.wait([bundle["asked"]], timeout=0)[0]:
                about = ray.get(bundle["asked"])
                if about["node"] in [each["about"].get("node") for each in self._bundles if not each["over"]]:
                    bundle["reason"] = f"another machine of its cluster is on {about['address']}"
                bundle["about"] = about
                if about["unfit"]:
                    self._unfit[about["node"]] = about["address"], time.monotonic() + _UNFIT_S
                    bundle["reason"] = f"{about['address']} does not suit, and is left out: {about['unfit']}"
                else:
                    bundle["started"] = time.monotonic()
            if not bundle["reason"] and ray.wait([bundle["stays"]], timeout=0)[0]:
                ray.get(bundle["stays"])
                bundle["reason"] = "what was ours there has ended: its lease was over, or it was killed"
            if not bundle["about"]:
                table, now = ray.util.placement_group_table(bundle["group"]["pg"]), time.monotonic()
                bundle["placed"] = (bundle["placed"] or now) if table.get("state") == "CREATED" else 0.0
                if bundle["placed"] and now - bundle["placed"] > _BEGIN_S:
                    bundle["reason"] = (
                        f"Ray has room for it, but has begun nothing there for {_BEGIN_S:.0f} s"
                    )
        except ray.exceptions.RayError as error:
            bundle["reason"] = " ".join(str(error).split())[:600]
        if bundle["reason"]:
            self._end([bundle])

    def _said(self, bundle: dict[str, Any], leaving: dict[str, float], now: float) -> dict[str, Any]:
        about = bundle["about"]
        state = "GONE" if bundle["over"] else "READY" if about else "STARTING"
        leaves_s = None if state != "READY" else leaving.get(about["node"])
        return {
            "id": bundle["id"], "token": bundle["token"], "role": bundle["role"], "state": state,
            "reason": bundle["reason"], "about": about, "leaves_s": leaves_s,
            "placed": bool(bundle["placed"]),
            "started_s": now - bundle["started"] if bundle["started"] else None,
            "ended_s": now - bundle["ended"] if bundle["over"] else None,
        }  # fmt: skip

    def _end(self, bundles: list[dict[str, Any]]) -> None:
        import ray

        partings = [
            bundle["actor"].end.remote() for bundle in bundles if bundle["about"] and not bundle["reason"]
        ]
        if partings:
            ray.wait(partings, num_returns=len(partings), timeout=_PARTING_S)
        for bundle in bundles:
            ray.kill(bundle["actor"])
            bundle["over"], bundle["ended"] = True, time.monotonic()
            bundle["reason"] = bundle["reason"] or "it was given back"

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            if time.monotonic() > self._over:
                time.sleep(0.5)  # who has had it end is answered
                os._exit(0)


class NodeInspector:
    """Sees a node, of which it is given nothing."""

    def about(self, scratch: str) -> dict[str, Any]:
        """Whose processes run there, and whether they may write what is below a directory."""
        import getpass

        place = Path(scratch)
        while not os.path.exists(place):  # noqa: PTH110 - Path.exists raises where it may not look
            place = place.parent
        return {"user": getpass.getuser(), "writes": os.access(place, os.W_OK | os.X_OK)}

    def now(self) -> float:
        """Its clock."""
        return time.time()

    def run(self, script: str) -> list[Any]:
        """The exit code, output and errors of a script."""
        done = subprocess.run(
            ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return [done.returncode, done.stdout, done.stderr]


def _gcs_address() -> str:
    """By which another process on this node can be a driver in this Ray."""
    import ray

    return str(getattr(ray.get_runtime_context(), "gcs_address", ""))


def _leaving() -> dict[str, float]:
    """Seconds until nodes go that Ray drains, by id."""
    import ray

    try:
        drained = ray._private.state.state.get_draining_nodes()
    except Exception:  # noqa: BLE001 - it is not of the public interface
        return {}
    return {node: max(until / 1000 - time.time(), 0.0) if until else 0.0 for node, until in drained.items()}


class RayProxyServer:
    """Answers calls about a Ray, and hands calls on to its actors."""

    def __init__(self, node_process: str) -> None:
        self._node_process = node_process
        self._actors: dict[tuple[str, str], Any] = {}

    def facts(self) -> list[dict[str, Any]]:
        """What there is: nodes that are alive."""
        import ray

        return [
            {"address": row["NodeManagerAddress"], "has": row["Resources"], "labels": row.get("Labels") or {}}
            for row in ray.nodes()
            if row["Alive"]
        ]

    def free(self) -> dict[str, float]:
        """What is not asked for."""
        import ray

        return dict(ray.available_resources())

    def versions(self) -> list[str]:
        """Of Ray and Python."""
        import ray

        return [ray.__version__, ".".join(map(str, sys.version_info[:3]))]

    def looks(self, addresses: list[str], script: str, scratch: str) -> dict[str, Any]:
        """What is seen of nodes, where a script runs at the same time; and the clock here."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = {row["NodeManagerAddress"]: row["NodeID"] for row in ray.nodes() if row["Alive"]}
        seen: dict[str, dict[str, Any]] = {each: {"error": "it is gone"} for each in addresses}
        looks = {
            each: ray.remote(NodeInspector)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[each], soft=False))
            .remote()
            for each in addresses
            if each in nodes
        }

        def lose(each: str, error: Exception) -> None:
            seen[each]["error"] = " ".join(str(error).split())[:300] or "no answer in time"
            ray.kill(looks.pop(each))

        def ask(do: str, *args: object) -> None:
            asked = {each: getattr(look, do).remote(*args) for each, look in looks.items()}
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_LOOK_S)
            for each, answer in asked.items():
                try:
                    seen[each] = {**seen[each], "error": "", do: ray.get(answer, timeout=0.1)}
                except Exception as error:  # noqa: BLE001 - told to who asks
                    lose(each, error)

        ask("about", scratch)
        for each, look in list(looks.items()):
            before = time.time()
            try:
                there = ray.get(look.now.remote(), timeout=_LOOK_S)
                seen[each]["ahead_s"] = there - (before + time.time()) / 2
            except Exception as error:  # noqa: BLE001 - told to who asks
                lose(each, error)
        ask("run", script)
        for look in looks.values():
            ray.kill(look)
        return {"now": time.time(), "nodes": seen}

    def keep(self, name: str, namespace: str, kept: str, shared: str, lease_s: float) -> None:
        """Have a keeper, which ends after its lease if nothing is asked of it."""
        import ray

        options = {"name": name, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        made = ray.remote(ClusterActor).options(
            **options, num_cpus=0, resources=_HEAD, max_restarts=0, max_concurrency=_CALLS
        )
        actor = made.remote(name, namespace, self._node_process, kept, shared, lease_s)
        ray.get(actor.renew.remote(0.0, lease_s), timeout=50)

    def names(self, namespace: str) -> list[str]:
        """Of actors that are there."""
        from ray.util import list_named_actors

        return [each["name"] for each in list_named_actors(True) if each["namespace"] == namespace]

    def call(self, namespace: str, name: str, do: str, *args: object) -> dict[str, Any]:
        """Call a method of an actor; ``None`` if there is none."""
        import ray

        known = (namespace, name)
        try:
            if known not in self._actors:
                self._actors[known] = _actor(namespace, name)
            return {"said": ray.get(getattr(self._actors[known], do).remote(*args))}
        except ray.exceptions.RayTaskError as error:  # it may be a ValueError, too: as its cause is
            if do == "take" and isinstance(error.cause, ValueError):
                return {"refused": str(error.cause)}
            raise RuntimeError(str(error.cause)) from None
        except ValueError:
            return {"gone": f"there is no actor {name}"}
        except ray.exceptions.ActorDiedError as error:
            self._actors.pop(known, None)
            return {"gone": " ".join(str(error).split())[:600]}


def _actor(namespace: str, name: str) -> Any:  # noqa: ANN401 - of Ray
    """One that is there. A client would start a task to ask which methods it has, and so a process: .7 s."""
    import ray

    found = ray.get_actor(name, namespace=namespace)
    try:
        from ray.util.client.common import ClientActorHandle

        if isinstance(found, ClientActorHandle):
            kind = BundleActor if "." in name.rpartition("-")[2] else ClusterActor
            return ClientActorHandle(found.actor_ref, types.SimpleNamespace(actor_cls=kind))
    except (ImportError, TypeError):  # of another version
        pass
    return found


def main(about: dict[str, Any]) -> None:
    """Serve one."""
    output = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no answer
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_CLIENT_RECONNECT_GRACE_PERIOD="5")
    # Of the settings; on a node, of what it was started with there.
    os.environ.update(about["variables"], **json.loads(os.environ.get("TRAINMASTER_RAY_VARIABLES", "{}")))
    writing = threading.Lock()

    def say(message: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\n")
        with writing:
            while rest:
                rest = rest[os.write(output, rest) :]

    say({"began": True})  # the core of Ray may end us
    ray_connection = types.ModuleType("ray_connection")
    exec(about["ray_connection"], vars(ray_connection))  # noqa: S102 - our own, sent with this
    try:
        ray_connection.knock(about["address"])
        _lighten()
        ray_connection.dial(about["address"])
    except Exception as error:  # noqa: BLE001 - told to who asks
        kind = "missing" if isinstance(error, ImportError) else "refused"
        kind = "away" if isinstance(error, (OSError, TimeoutError)) else kind
        kind = "stranger" if type(error).__name__ in ("LoginNeededError", "AuthenticationError") else kind
        said = str(error).strip() or type(error).__name__
        say({kind: f"{said}", "python": sys.version.split()[0], "path": sys.executable})
        os._exit(1)
    say({"ready": True})
    server = RayProxyServer(about["node_process"])

    def answer(call: dict[str, Any]) -> None:
        try:
            found = {"result": getattr(server, call["do"])(*call["args"])}
        except (ConnectionError, OSError) as error:
            say({"id": call["id"], "lost": str(error)})
            os._exit(1)
        except Exception as error:  # noqa: BLE001 - told to who asks
            found = {"error": f"{type(error).__name__}: {error}"}
        say({"id": call["id"], **found})

    with concurrent.futures.ThreadPoolExecutor(512) as pool:
        for line in sys.stdin.buffer:
            pool.submit(answer, json.loads(line))
        os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.stdin.buffer.readline()))
