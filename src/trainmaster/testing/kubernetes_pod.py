"""`DoublePod`: a pod of `KubernetesDouble`, whose first process is one of this machine; and what is no pod.

`check_pod` refuses what a real API server refuses, so that a manifest which only the double would take fails
its tests, too. `tests/contract/test_kubernetes_server.py` holds both to the same answers.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.providers.kubernetes.manifests import amount_of

if TYPE_CHECKING:
    from starlette.responses import Response

#: Pods stay on a node that is unreachable for so long, unless they say otherwise.
_TOLERATED_S: Final = 300.0
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL: Final = re.compile(r"(?=.{0,63}$)(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_KEY: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_AMOUNT: Final = re.compile(r"[+-]?[0-9.]+([eEinumkKMGTP]*[-+]?[0-9]*)")
_POLICIES: Final = ("Always", "OnFailure", "Never")
_EFFECTS: Final = (None, "NoSchedule", "PreferNoSchedule", "NoExecute")


class DoublePod:
    """One, and the process that is its first."""

    def __init__(self, told: dict[str, Any], number: int, root: Path) -> None:
        self.told, self.number = told, number
        self.directory = root / told["metadata"]["uid"]
        self.process: subprocess.Popen[bytes] | None = None
        self.init = 0
        self.asked_at = 0.0
        self.kill_at: float | None = None

    @property
    def needs(self) -> dict[str, float]:
        """What its container asks for, by resource."""
        (container,) = self.told["spec"]["containers"]
        requests = (container.get("resources") or {}).get("requests") or {}
        return {key: amount_of(str(value)) for key, value in requests.items()}

    @property
    def node(self) -> str:
        """Where it is; empty before it was given a node."""
        return str(self.told["spec"].get("nodeName", ""))

    @property
    def tolerated_s(self) -> float:
        """So long it stays on a node that is unreachable."""
        found = [each for each in self.told["spec"].get("tolerations", ()) if each["key"] == UNREACHABLE]
        return float(found[0]["tolerationSeconds"]) if found else _TOLERATED_S

    @property
    def is_over(self) -> bool:
        """Whether its first process has ended."""
        return self.told["status"]["phase"] in ("Succeeded", "Failed")

    @property
    def is_alive(self) -> bool:
        """Whether its first process runs, whoever knows."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Begin its first process."""
        (container,) = self.told["spec"]["containers"]
        self.directory.mkdir()
        words = [*container.get("command", ()), *container.get("args", ())]
        words = [each.replace("$$", "$") for each in words]  # as Kubernetes does
        if os.geteuid() == 0:
            mounts = [f"mount -t tmpfs tmpfs {each}" for each in self._places()]
            name = self.told["metadata"]["name"][:63]
            script = " && ".join(
                [f"hostname {name}", *(f"mkdir -p {each}" for each in self._places()), *mounts, 'exec "$@"']
            )
            words = [
                "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
                "sh", "-c", script, "sh", *words,
            ]  # fmt: skip
        else:
            words = [each.replace("/run/trainmaster", str(self.directory)) for each in words]
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
                env={**os.environ, **self._environ()},
            )  # fmt: skip
        self.told["status"] |= {
            "phase": "Running",
            "podIP": f"127.1.{self.number // 250}.{self.number % 250 + 1}",
            "startTime": written_time(time.time()),
            "containerStatuses": [{"name": container["name"], "state": {"running": {}}}],
        }

    def _environ(self) -> dict[str, str]:
        """Of its container: annotations, as they are now."""
        (container,) = self.told["spec"]["containers"]
        found = {}
        for each in container.get("env", ()):
            if path := ((each.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath"):
                key = path.removeprefix("metadata.annotations['").removesuffix("']")
                found[each["name"]] = self.told["metadata"]["annotations"].get(key, "")
        return found

    def _places(self) -> list[str]:
        """Directories of its own: hostPath volumes are where they are."""
        (container,) = self.told["spec"]["containers"]
        own = {each["name"] for each in self.told["spec"].get("volumes", ()) if "emptyDir" in each}
        mounts = [each["mountPath"] for each in container.get("volumeMounts", ()) if each["name"] in own]
        return [*(each for each in mounts if each != "/dev/shm"), "/var/tmp"]  # noqa: S108 - of the pod

    def first(self) -> int:
        """Number of its first process, as this machine has it."""
        assert self.process is not None
        if os.geteuid() != 0:
            return self.process.pid
        deadline = time.monotonic() + 10
        while not self.init and time.monotonic() < deadline:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            with contextlib.suppress(OSError, ValueError, IndexError):
                self.init = int(children.read_text().split()[0])
        return self.init

    def look(self) -> None:
        """Its end, if it has ended."""
        if self.process is None or self.is_over or self.process.poll() is None:
            if self.kill_at is not None and self.process is not None and time.time() >= self.kill_at:
                self.kill()
            return
        code = self.process.returncode
        code = 128 - code if code < 0 else code
        self.told["status"]["phase"] = "Failed" if code else "Succeeded"
        ended = {"exitCode": code, "finishedAt": written_time(time.time())}
        self.told["status"]["containerStatuses"][0]["state"] = {"terminated": ended}

    def kill(self) -> None:
        """End all its processes at once."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            if os.geteuid() == 0 and self.init:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init, signal.SIGKILL)
            self.process.wait()


class DoubleRefusal(Exception):  # noqa: N818 - an answer
    """What a server says that does not do what it was asked."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(message)

    def answer(self) -> Response:
        """What is sent."""
        from starlette.responses import JSONResponse

        told = {"kind": "Status", "status": "Failure", "message": self.message, "reason": self.reason}
        return JSONResponse(told | {"code": self.status}, self.status)


def check_pod(told: Mapping[str, Any], space: str) -> None:
    """Refuse what no server takes.

    Raises:
        DoubleRefusal: it is not a pod of that namespace.
    """
    about, spec = told.get("metadata") or {}, told.get("spec") or {}
    name = str(about.get("name", ""))
    if told.get("kind", "Pod") != "Pod" or told.get("apiVersion", "v1") != "v1":
        message = f"{told.get('kind')} in version {told.get('apiVersion')!r} cannot be handled as a Pod"
        raise DoubleRefusal(400, "BadRequest", message)
    if about.get("namespace", space) != space:
        message = "the namespace of the provided object does not match the namespace sent on the request"
        raise DoubleRefusal(400, "BadRequest", message)
    if wrong := [*_wrong_names(about), *_wrong_in(spec)]:
        raise DoubleRefusal(422, "Invalid", f'Pod "{name}" is invalid: {", ".join(wrong)}')


def check_restricted(told: Mapping[str, Any]) -> None:
    """Refuse what a namespace whose level is ``restricted`` does not take.

    Raises:
        DoubleRefusal: it may do more than that.
    """
    spec, wrong = told["spec"], list[str]()
    own = [each.get("securityContext") or {} for each in spec["containers"]]
    wrong += ["host namespaces (hostNetwork=true)"] if spec.get("hostNetwork") else []
    if any(each.get("allowPrivilegeEscalation", True) for each in own):
        wrong.append("allowPrivilegeEscalation != false")
    if any("ALL" not in (each.get("capabilities") or {}).get("drop", ()) for each in own):
        wrong.append("unrestricted capabilities")
    if any("hostPath" in each for each in spec.get("volumes", ())):
        wrong.append("restricted volume types")
    if not all(each.get("runAsNonRoot") for each in own):
        wrong.append("runAsNonRoot != true")
    if not all("seccompProfile" in each for each in own):
        wrong.append("seccompProfile")
    if wrong:
        name, words = (
            told["metadata"]["name"],
            f'violates PodSecurity "restricted:latest": {", ".join(wrong)}',
        )
        raise DoubleRefusal(403, "Forbidden", f'pods "{name}" is forbidden: {words}')


def _wrong_names(about: Mapping[str, Any]) -> Iterator[str]:
    if not about.get("name"):
        yield "metadata.name: Required value: name or generateName is required"
    elif not _NAME.fullmatch(about["name"]):
        yield f'metadata.name: Invalid value: "{about["name"]}"'
    for what in ("labels", "annotations"):
        for key, value in (about.get(what) or {}).items():
            if not _KEY.fullmatch(key) or (what == "labels" and not _LABEL.fullmatch(value)):
                yield f"metadata.{what}: Invalid value: {key}={value}"


def _wrong_in(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("restartPolicy", "Always") not in _POLICIES:
        yield f'spec.restartPolicy: Unsupported value: "{spec["restartPolicy"]}"'
    for key, value in (spec.get("nodeSelector") or {}).items():
        if not _KEY.fullmatch(key) or not _LABEL.fullmatch(value):
            yield f"spec.nodeSelector: Invalid value: {key}={value}"
    for each in spec.get("tolerations") or ():
        if each.get("effect") not in _EFFECTS:
            yield f'spec.tolerations.effect: Unsupported value: "{each["effect"]}"'
        if "tolerationSeconds" in each and each.get("effect") != "NoExecute":
            yield "spec.tolerations.effect: Invalid value: effect must be 'NoExecute' when it has seconds"
        if each.get("operator") == "Exists" and each.get("value"):
            yield "spec.tolerations.operator: Invalid value: value must be empty when `operator` is 'Exists'"
    volumes = [each["name"] for each in spec.get("volumes") or ()]
    yield from (f'spec.volumes.name: Duplicate value: "{each}"' for each in _twice(volumes))
    if not spec.get("containers"):
        yield "spec.containers: Required value"
    for container in spec.get("containers") or ():
        if not str(container.get("image", "")).strip():
            yield "spec.containers.image: Required value"
        mounts = container.get("volumeMounts") or ()
        for each in mounts:
            if each["name"] not in volumes:
                yield f'spec.containers.volumeMounts.name: Not found: "{each["name"]}"'
        for place in _twice(each["mountPath"] for each in mounts):
            yield f'spec.containers.volumeMounts.mountPath: Invalid value: "{place}": must be unique'
        yield from _wrong_amounts(container.get("resources") or {})


def _wrong_amounts(resources: Mapping[str, Any]) -> Iterator[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for key, written in (*requests.items(), *limits.items()):
        if not _AMOUNT.fullmatch(str(written)):
            raise DoubleRefusal(400, "BadRequest", "quantities must match the regular expression")
        if "/" in key and amount_of(str(written)) % 1:
            yield f'spec.containers.resources[{key}]: Invalid value: "{written}": must be an integer'
    for key, written in requests.items():
        amount, limit = amount_of(str(written)), amount_of(str(limits.get(key, written)))
        if amount > limit or ("/" in key and (amount != limit or key not in limits)):
            yield f'spec.containers.resources.requests: Invalid value: "{written}": must fit the {key} limit'


def _twice(names: Iterator[str] | list[str]) -> list[str]:
    return [each for each, count in Counter(names).items() if count > 1]


def written_time(at: float) -> str:
    """As Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
