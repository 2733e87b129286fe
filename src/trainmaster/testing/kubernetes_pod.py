"""`DoublePod`: a pod of `KubernetesDouble`, whose first process is one of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.kubernetes.manifests import amount_of

#: Pods stay on a node that is unreachable for so long, unless they say otherwise.
_TOLERATED_S: Final = 300.0
UNREACHABLE: Final = "node.kubernetes.io/unreachable"


class DoublePod:
    """One, and the process that is its first."""

    def __init__(self, told: dict[str, Any], number: int, root: Path) -> None:
        self.told, self.number = told, number
        self.directory = root / told["metadata"]["uid"]
        self.process: subprocess.Popen[bytes] | None = None
        self.init = 0
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


def written_time(at: float) -> str:
    """As Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
