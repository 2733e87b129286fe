"""`KubernetesDouble`: the routes of Kubernetes that we use, with pods that are processes of this machine.

As root each pod has a name, processes, mounts and directories of its own, but the network and files of this
machine. The contract tests of the provider and the transport run on it, and on a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.testing.kubernetes_pod import (
    UNREACHABLE,
    DoublePod,
    DoubleRefusal,
    check_pod,
    check_restricted,
    written_time,
)
from trainmaster.testing.private_server import START_TIMEOUT_S, PrivateServer, free_ports

if TYPE_CHECKING:
    from starlette.responses import Response

#: The token that is taken.
_PODS: Final = "/api/v1/namespaces/{space}/pods"
_METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
_READ_BYTES: Final = 1 << 15
#: A node that is silent for so long is not ready (40 in Kubernetes, as long in `PrivateKubernetes`).
_SILENT_S: Final = 20.0
#: Pods of a node that is deleted are deleted after so long.
_ORPHANED_S: Final = 40.0
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_STRATEGIC: Final = _PATCHES[2]
_NO_PREEMPTION: Final = "Preemption is not helpful for scheduling"


class KubernetesDouble(PrivateServer):
    """A Kubernetes.

    Args:
        cpus: of each node.
        nodes: how many.

    Attributes:
        cpus: as given; it may be changed.
        requests: what was asked for: method, path, query, body.
        pod_limit: of a quota; None for none. forbidden: verbs that the login may not do.
        has_levels: a namespace may be ``restricted``.
    """

    has_levels = True

    def __init__(self, cpus: float = 16.0, nodes: int = 1) -> None:
        self.cpus = cpus
        self._nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._silent: dict[str, float] = {}
        self._removed: set[str] = set()
        self._events: list[dict[str, Any]] = []
        (self.port,) = free_ports(1)
        self._root = Path(tempfile.mkdtemp(prefix="tm-k8s-"))
        self._pods: dict[tuple[str, str], DoublePod] = {}
        #: Deleted by force, which what runs in them does not notice.
        self._ending: list[DoublePod] = []
        self._lock = threading.RLock()
        self._number = 0
        self._over = threading.Event()
        self._server: Any = None
        self._serving: threading.Thread | None = None
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.pod_limit: int | None = None
        self.forbidden: set[str] = set()
        self._is_restricted = False
        self._token = ""
        self.kubeconfig = self._root / "alice.conf"

    def prepare(self) -> None:
        """See `PrivateServer`."""
        self.end_login()
        self.log_in()

    def end_login(self) -> None:
        """The user's token is over."""
        self._token = secrets.token_hex(8)

    def log_in(self) -> None:
        """The user has one that is taken, in the same file."""
        told = {
            "apiVersion": "v1", "kind": "Config", "current-context": "double",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": self._token}}],
            "contexts": [
                {"name": "double", "context": {"cluster": "c", "user": "u", "namespace": "research"}}
            ],
        }  # fmt: skip
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(told))

    def restrict(self, *, is_restricted: bool) -> None:
        """See `PrivateKubernetes`."""
        self._is_restricted = is_restricted

    def start(self) -> None:
        """See `PrivateServer`."""
        threading.Thread(target=self._tend, name="kubelet", daemon=True).start()
        self.start_server()

    def start_server(self) -> None:
        """The API server is there, with all that it knew."""
        import uvicorn

        settings = uvicorn.Config(
            self._app(), port=self.port, log_level="critical", lifespan="off", ws="websockets-sansio"
        )
        self._server = uvicorn.Server(settings)
        self._serving = threading.Thread(target=self._server.run, name="kubernetes", daemon=True)
        self._serving.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop_server(self) -> None:
        """The API server is gone, with all that went through it; pods go on."""
        self._server.should_exit = self._server.force_exit = True
        assert self._serving is not None
        self._serving.join(START_TIMEOUT_S)

    def close(self) -> None:
        """See `PrivateServer`."""
        self._over.set()
        for pod in [*self._pods.values(), *self._ending]:
            pod.kill()
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
        shutil.rmtree(self._root, ignore_errors=True)

    def left(self) -> list[str]:
        """Pods that are there and do not go."""
        with self._lock:
            return [
                name
                for (_, name), pod in self._pods.items()
                if "deletionTimestamp" not in pod.told["metadata"] and not pod.is_over
            ]

    def evict(self, name: str, space: str = "research", grace_s: float | None = None) -> None:
        """As somebody who drains its node does."""
        self._delete(space, name, grace_s)

    def node_of(self, name: str, space: str = "research") -> str:
        """The node that a pod is on."""
        return self._found(space, name).node

    def ready(self) -> list[str]:
        """Names of the nodes that work."""
        return [each for each in self._nodes if not self._is_lost(each)]

    def cut(self, name: str) -> None:
        """See `PrivateKubernetes`."""
        with self._lock:
            self._silent[name] = time.time()

    def kill(self, name: str) -> None:
        """A node, and all that runs there, ends at once."""
        with self._lock:
            self.cut(name)
            for pod in self._on(name):
                pod.kill()

    def remove(self, name: str) -> None:
        """It ends, and whoever looks after the nodes deletes it."""
        with self._lock:
            self.kill(name)
            self._removed.add(name)

    def boot(self, name: str) -> None:
        """A node is there, with nothing on it."""
        with self._lock:
            self._silent.pop(name, None)
            self._removed.discard(name)

    def fill(self, name: str, space: str = "research") -> None:
        """As the kubelet does with a pod that has used up its disk."""
        with self._lock:
            pod = self._pods[space, name]
            pod.kill()
            pod.look()
            pod.told["status"] |= {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1G. ",
            }

    def annotate(self, key: str, value: str) -> None:
        """Write something on every pod."""
        with self._lock:
            for pod in self._pods.values():
                pod.told["metadata"]["annotations"][key] = value

    # --- what it does --------------------------------------------------------------------------------------

    def _tend(self) -> None:
        while not self._over.wait(0.05):
            with self._lock:
                self._look_after_nodes()
                self._look_at_ending()
                for key, pod in list(self._pods.items()):
                    if pod.node in self._silent:
                        continue  # its kubelet does not tell what became of it
                    pod.look()
                    if pod.is_over or pod.process is None:
                        self._remove(key)
                self._control()
                self._schedule()

    def _control(self) -> None:
        """What others do who look after pods."""

    def _on(self, node: str) -> list[DoublePod]:
        return [pod for pod in self._pods.values() if pod.node == node and pod.process is not None]

    def _is_lost(self, node: str) -> bool:
        """Whether it is known to be."""
        silent_since = self._silent.get(node)
        return node in self._removed or (silent_since is not None and time.time() > silent_since + _SILENT_S)

    def _look_after_nodes(self) -> None:
        """What the controllers of nodes and of garbage do: pods of a node that is lost have to go."""
        for node in filter(self._is_lost, self._nodes):
            silent_s = time.time() - self._silent[node]
            for pod in self._on(node):
                about, is_removed = pod.told["metadata"], node in self._removed
                pod.told["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
                if is_removed and silent_s > _ORPHANED_S:
                    del self._pods[about["namespace"], about["name"]]
                elif (
                    not is_removed
                    and "deletionTimestamp" not in about
                    and silent_s > _SILENT_S + pod.tolerated_s
                    and self.ready()  # else Kubernetes takes itself for the one who is cut off
                ):
                    message = f"Marking for deletion Pod {about['namespace']}/{about['name']}"
                    event = {"reason": "TaintManagerEviction", "message": message}
                    self._events.append(event | {"involvedObject": {"name": about["name"]}})
                    self._delete(about["namespace"], about["name"], None)

    def _schedule(self) -> None:
        for pod in self._pods.values():
            if pod.process is not None or pod.is_over or "deletionTimestamp" in pod.told["metadata"]:
                continue
            if pod.told["spec"].get("schedulingGates"):
                gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
                gated["message"] = "Scheduling is blocked due to non-empty scheduling gates"
                pod.told["status"]["conditions"] = [gated]
                continue
            lacking = "nvidia.com/gpu" if pod.needs.get("nvidia.com/gpu") else "cpu"
            used = {
                node: sum(p.needs.get("cpu", 0) for p in self._on(node) if not p.is_over)
                for node in self.ready()
            }
            fit = [node for node in used if used[node] + pod.needs.get("cpu", 0) <= self.cpus]
            conditions: list[dict[str, Any]] = []
            if not fit or lacking != "cpu":
                there = len(self._nodes) - len(self._removed)
                words = [f"{len(used)} Insufficient {lacking}"] if used else []
                if lost := there - len(used):
                    words += [f"{lost} node(s) had taint {{{UNREACHABLE}: }}, that the pod didn't tolerate"]
                available = f"0/{there} nodes are available:"
                message = f"{available} {', '.join(words)}. preemption: {available} {there} {_NO_PREEMPTION}."
                conditions = [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                ]
            else:
                pod.told["spec"]["nodeName"] = min(fit, key=lambda node: used[node])
                pod.start()
            pod.told["status"]["conditions"] = conditions

    def _delete(self, space: str, name: str, grace_s: float | None) -> None:
        with self._lock:
            pod = self._pods.get((space, name))
            if pod is None:
                raise DoubleRefusal(404, "NotFound", f'pods "{name}" not found')
            about = pod.told["metadata"]
            if grace_s is None:
                grace_s = float(pod.told["spec"].get("terminationGracePeriodSeconds", 30))
            if pod.process is None or pod.is_over:
                grace_s = 0.0  # there is nothing to wait for
            known_s = about.get("deletionGracePeriodSeconds")
            if known_s is not None and grace_s >= known_s:
                return  # it is made shorter, never longer
            if known_s is None:
                pod.asked_at = time.time()
            about["deletionTimestamp"] = written_time(pod.asked_at + grace_s)
            about["deletionGracePeriodSeconds"] = round(grace_s)
            if pod.kill_at is None:  # its kubelet does not hear of less while it waits (kubernetes 113606)
                pod.kill_at = pod.asked_at + grace_s
                if pod.node not in self._silent and pod.is_alive and (first := pod.first()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(first, signal.SIGTERM)
            if not grace_s:
                self._ending.append(pod)
                self._look_at_ending()
                self._remove((space, name))

    def _look_at_ending(self) -> None:
        """What their nodes do with pods that were deleted by force."""
        for pod in self._ending:
            if pod.node not in self._silent:
                pod.look()
        self._ending = [each for each in self._ending if each.is_alive]

    def _remove(self, key: tuple[str, str]) -> None:
        """Forget what was deleted and has ended, unless a finalizer keeps it."""
        about = self._pods[key].told["metadata"]
        if "deletionTimestamp" in about and not about.get("finalizers"):
            del self._pods[key]

    def _patch(self, space: str, name: str, body: Mapping[str, Any], *, is_strategic: bool) -> dict[str, Any]:
        """Merge metadata; nothing else of a pod is changed here."""
        with self._lock:
            pod = self._found(space, name)
            about, new = pod.told["metadata"], body.get("metadata") or {}
            if wrong := [key for key in body if key not in ("metadata", "apiVersion", "kind")]:
                message = f"{wrong[0]}: Forbidden: pod updates may not change fields other than `metadata`"
                raise DoubleRefusal(422, "Invalid", f'Pod "{name}" is invalid: {message}')
            gone = new.get("$deleteFromPrimitiveList/finalizers", ()) if is_strategic else ()
            holders = [each for each in about.get("finalizers", ()) if each not in gone]
            if "finalizers" in new:
                wished = dict.fromkeys([*(holders if is_strategic else ()), *(new["finalizers"] or ())])
                if "deletionTimestamp" in about and wished.keys() - set(holders):
                    message = "metadata.finalizers: Forbidden: no new finalizers can be added"
                    raise DoubleRefusal(422, "Invalid", f'Pod "{name}" is invalid: {message}')
                holders = list(wished)
            about["finalizers"] = holders
            for what in ("annotations", "labels"):
                merged = {**(about.get(what) or {}), **(new.get(what) or {})}
                about[what] = {key: value for key, value in merged.items() if value is not None}
            told = pod.told
            if pod.is_over or pod.process is None:
                self._remove((space, name))
            return told

    def _create(self, space: str, told: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        with self._lock:
            check_pod(told, space)
            if self._is_restricted:
                check_restricted(told)
            name = told["metadata"]["name"]
            if (space, name) in self._pods:
                raise DoubleRefusal(409, "AlreadyExists", f'pods "{name}" already exists')
            there = len([p for p in self._pods.values() if not p.is_over])
            if self.pod_limit is not None and there >= self.pod_limit:
                raise DoubleRefusal(
                    403, "Forbidden",
                    f'pods "{name}" is forbidden: exceeded quota: q, requested: pods=1, used: pods={there}, '
                    f"limited: pods={self.pod_limit}",
                )  # fmt: skip
            told["metadata"] |= {
                "namespace": space, "uid": uuid.uuid4().hex, "creationTimestamp": written_time(time.time()),
            }  # fmt: skip
            told["status"] = {"phase": "Pending"}
            if not is_dry:
                self._number += 1
                self._pods[space, name] = DoublePod(told, self._number, self._root)
                self._schedule()
            return told

    def _found(self, space: str, name: str) -> DoublePod:
        pod = self._pods.get((space, name))
        if pod is None:
            raise DoubleRefusal(404, "NotFound", f'pods "{name}" not found')
        if pod.node not in self._silent:
            pod.look()
        return pod

    def _reached(self, space: str, name: str) -> DoublePod:
        """One whose kubelet answers."""
        pod = self._found(space, name)
        if not pod.node:
            raise DoubleRefusal(400, "BadRequest", f"pod {name} does not have a host assigned")
        if pod.node in self._silent:
            message = "error dialing backend: dial tcp: connect: connection refused"
            raise DoubleRefusal(500, "InternalError", message)
        return pod

    def _listed(self, space: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Pods that are chosen by their labels, page by page in the order of their names."""
        wanted = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
        with self._lock:
            pods = sorted((name, pod.told) for (of, name), pod in self._pods.items() if of == space)
        found = [
            (name, told)
            for name, told in pods
            if all((told["metadata"].get("labels") or {}).get(k) == v for k, v in wanted)
            and name > query.get("continue", "")
        ]
        most = int(query.get("limit") or 0) or len(found)
        more = {"continue": found[most - 1][0]} if len(found) > most else {}
        return {"kind": "PodList", "metadata": more, "items": [told for _, told in found[:most]]}

    # --- its routes ----------------------------------------------------------------------------------------

    def _answer(self, method: str, space: str, rest: list[str], query: Mapping[str, str], body: Any) -> Any:  # noqa: ANN401 - JSON, or the library's
        match method, rest:
            case "GET", ["pods"]:
                return self._listed(space, query)
            case "POST", ["pods"]:
                return self._create(space, body, is_dry="dryRun" in query)
            case "GET", ["pods", name]:
                return self._found(space, name).told
            case "GET", ["pods", name, "log"]:
                if not self._found(space, name).node:
                    return ""
                return (self._reached(space, name).directory / "log").read_text(errors="replace")
            case "PATCH", ["pods", name]:
                return self._patch(space, name, body, is_strategic=query["kind"] == _STRATEGIC)
            case "DELETE", ["pods", name]:
                grace = query.get("gracePeriodSeconds")
                told = self._found(space, name).told
                self._delete(space, name, None if grace is None else float(grace))
                return told
            case "GET", ["resourcequotas"]:
                limit = self.pod_limit
                used = len([p for p in self._pods.values() if not p.is_over])
                status = {"hard": {"pods": str(limit)}, "used": {"pods": str(used)}}
                found = [] if limit is None else [{"metadata": {"name": "q"}, "status": status}]
                return {"kind": "ResourceQuotaList", "metadata": {}, "items": found}
            case "GET", ["events"]:
                whose = query.get("fieldSelector", "").removeprefix("involvedObject.name=")
                events = [each for each in self._events if each["involvedObject"]["name"] == whose]
                return {"kind": "EventList", "metadata": {}, "items": events}
        raise DoubleRefusal(404, "NotFound", "the server could not find the requested resource")

    def _app(self) -> Any:  # noqa: ANN401 - JSON, or the library's
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route, WebSocketRoute

        async def review(request: Request) -> Response:
            told = await request.json()
            asked = told["spec"]["resourceAttributes"]
            return JSONResponse(told | {"status": {"allowed": asked["verb"] not in self.forbidden}}, 201)

        async def route(request: Request) -> Response:
            body = json.loads(await request.body() or b"null")
            rest = request.path_params["rest"].split("/")
            query = dict(request.query_params)
            self.requests.append((request.method, request.path_params["rest"], query, body))
            try:
                if request.headers.get("authorization") != f"Bearer {self._token}":
                    raise DoubleRefusal(401, "Unauthorized", "Unauthorized")
                if request.method == "PATCH":
                    query["kind"] = request.headers.get("content-type", "")
                    if query["kind"] not in _PATCHES:
                        message = f"the body of the request was in an unknown format: {query['kind']}"
                        raise DoubleRefusal(415, "UnsupportedMediaType", message)
                verb = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}.get(request.method, "get")
                if verb in self.forbidden:
                    raise DoubleRefusal(
                        403, "Forbidden", f'pods is forbidden: User "alice" cannot {verb} resource "pods"'
                    )
                space = request.path_params["space"]
                found = await asyncio.to_thread(self._answer, request.method, space, rest, query, body)
            except DoubleRefusal as refused:
                return refused.answer()
            if isinstance(found, str):
                return PlainTextResponse(found)
            return JSONResponse(found, 201 if request.method == "POST" else 200)

        return Starlette(
            routes=[
                Route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, methods=["POST"]),
                WebSocketRoute(_PODS + "/{name}/exec", self._exec),
                *(
                    Route(f"{api}/namespaces/{{space}}/{{rest:path}}", route, methods=_METHODS)
                    for api in ("/api/v1", "/apis/{group}/{version}")
                ),
            ]
        )

    async def _exec(self, line: Any) -> None:  # noqa: ANN401 - JSON, or the library's
        try:
            if line.headers.get("authorization") != f"Bearer {self._token}":
                raise DoubleRefusal(401, "Unauthorized", "Unauthorized")
            pod = self._reached(line.path_params["space"], line.path_params["name"])
            if pod.is_over:
                container = line.query_params["container"]
                raise DoubleRefusal(500, "InternalError", f'container not found ("{container}")')
        except DoubleRefusal as refused:
            await line.send_denial_response(refused.answer())
            return
        await line.accept("v4.channel.k8s.io")
        words = line.query_params.getlist("command")
        if os.geteuid() == 0:
            words = ["nsenter", "--target", str(pod.first()), "--mount", "--uts", "--pid", *words]
        pipe = asyncio.subprocess.PIPE
        is_terminal = "tty" in line.query_params
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT if is_terminal else pipe,
            cwd="/", start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None

        async def bring(channel: int, stream: asyncio.StreamReader | None) -> None:
            while stream is not None and (data := await stream.read(_READ_BYTES)):
                await line.send_bytes(bytes([channel]) + data)

        async def take() -> None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                while True:
                    told = await line.receive()
                    if told["type"] != "websocket.receive":
                        break
                    data = told.get("bytes") or b""
                    if data[:1] == b"\0":
                        process.stdin.write(data[1:])
                        await process.stdin.drain()
            process.stdin.close()

        taking = asyncio.create_task(take())
        try:
            with contextlib.suppress(Exception):
                await asyncio.gather(bring(1, process.stdout), bring(2, process.stderr))
                code = await process.wait()
                if pod.node in self._silent:  # what it was told through is gone, too
                    return
                code = 128 - code if code < 0 else code
                status: dict[str, Any] = {"metadata": {}, "status": "Success"}
                if code:
                    causes = [{"reason": "ExitCode", "message": str(code)}]
                    status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                              "message": f"command terminated with non-zero exit code {code}",
                              "details": {"causes": causes}}  # fmt: skip
                await line.send_bytes(b"\3" + json.dumps(status).encode())
                await line.close()
        finally:  # also when the server ends
            taking.cancel()
            # A pod that is killed can leave its pipes to a process of its own; asyncio has no public way.
            process._transport.close()  # type: ignore[attr-defined]
