"""`PrivateKubernetes`: a real Kubernetes 1.20 of one's own, with nodes that are namespaces of this machine.

`make kubernetes` builds its programs from Debian's source (``scripts/build_kubernetes.sh``). It needs root
and Debian's ``etcd-server docker.io busybox-static``. Each node has a kubelet and a dockerd of its own.
``python -m trainmaster.testing.private_kubernetes`` starts one to try.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Self

from trainmaster.testing.private_server import PrivateServer, free_ports, spawn, stay
from trainmaster.transport.http_calls import gone_is_fine
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.login import read_login

#: Below the cache of the user; another version is another directory.
DIRECTORY: Final = "kubernetes-1.20"
NAMESPACE: Final = "research"
_BINARIES: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_PROGRAMS: Final = ("etcd", "dockerd", "docker", "containerd", "runc", "openssl", "ip", "nsenter", "busybox")
_PATIENCE_S: Final = 180.0
#: The kubelet gives sandboxes an oom_score_adj that takes a right which virtual machines may lack.
_RUNC: Final = """#!/bin/sh
b=; p=; for a in "$@"; do [ "$p" = --bundle ] && b=$a; p=$a; done
[ -n "$b" ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$b/config.json"
exec runc "$@"
"""
#: The rights of docs/kubernetes.md.
RULES: Final = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["pods/log", "events", "resourcequotas"], "verbs": ["get", "list"]},
]
#: May do the same, and its token is in the pods that name it.
SERVICE_ACCOUNT: Final = "trainmaster"
#: This machine, as nodes and pods reach it.
ADDRESS: Final = "10.84.0.254"
#: The API server, as pods are told where it is: nothing here leads the service's address elsewhere.
_SERVER: Final = "10.86.0.1"
_SERVER_PORT: Final = 443
_RBAC: Final = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"


class NoKubernetesError(Exception):
    """There is no Kubernetes that could be started here."""


def default_cache() -> Path:
    """Where it was built."""
    return Path(os.environ.get("TRAINMASTER_CACHE") or Path.home() / ".cache" / "trainmaster")


class PrivateKubernetes(PrivateServer):
    """One network for all, so there is one at a time on a machine.

    Args:
        binaries: directory of its programs.
        nodes: how many.

    Attributes:
        kubeconfig: of a user who has the rights of docs/kubernetes.md, and no more.
        admin: of one who may do all.
    """

    def __init__(self, binaries: Path, nodes: int = 1) -> None:
        self._binaries = binaries
        self._place = Path(tempfile.mkdtemp(prefix="tm-k8s-", dir="/run"))
        # Images and layers lie on a disk: /run has little room.
        self._disk = Path(tempfile.mkdtemp(prefix="tm-k8s-", dir="/var/tmp"))
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        self._etcd, self._peer, self._health, self._other = free_ports(4)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens = {name: secrets.token_hex(16) for name in ("admin", "alice")}
        self.kubeconfig, self.admin = self._place / "alice.conf", self._place / "admin.conf"
        self._held: IO[str] | None = None
        self._pod_limit: int | None = None
        self._forbidden: set[str] = set()

    @classmethod
    def installed(cls, nodes: int = 1) -> Self:
        """One that can be started.

        Raises:
            NoKubernetesError: what is missing.
        """
        binaries = default_cache() / DIRECTORY
        if missing := [name for name in _BINARIES if not (binaries / name).exists()]:
            raise NoKubernetesError(f"{binaries} has no {missing[0]}; `make kubernetes` builds it")
        if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
            packages = "etcd-server docker.io busybox-static"
            raise NoKubernetesError(f"{', '.join(missing)} not installed (Debian: {packages})")
        if os.geteuid() != 0:
            raise NoKubernetesError("a Kubernetes of one's own needs root")
        return cls(binaries, nodes)

    # --- its life ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """See `PrivateServer`."""
        held = Path("/run/lock/tm-k8s").open("w")  # noqa: SIM115 - held until the end
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # another one has the network
        except BaseException:
            held.close()  # and keeps it: what there is to sweep is the other's
            raise
        self._held = held
        self._sweep()
        _run("ip", "link", "add", "tmk8s", "type", "bridge")
        for address in (f"{ADDRESS}/24", f"{_SERVER}/32"):
            _run("ip", "addr", "add", address, "dev", "tmk8s")
        _run("ip", "link", "set", "tmk8s", "up")
        for number, name in enumerate(self._names, 1):
            space = f"tmk8s-{name}"
            _run("ip", "netns", "add", space)
            _run(
                "ip", "link", "add", f"tmk8sv{number}", "type", "veth", "peer", "name", "eth0", "netns", space
            )
            _run("ip", "link", "set", f"tmk8sv{number}", "master", "tmk8s", "up")
            _run("ip", "-n", space, "addr", "add", f"10.84.0.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _run("ip", "-n", space, "link", "set", device, "up")
            _run("ip", "-n", space, "route", "add", "default", "via", ADDRESS)
            _run("ip", "route", "add", f"10.85.{number}.0/24", "via", f"10.84.0.{number}")
            for other in range(1, len(self._names) + 1):
                if other != number:
                    _run("ip", "-n", space, "route", "add", f"10.85.{other}.0/24", "via", f"10.84.0.{other}")
        runc = self._place / "runc-lab"
        runc.write_text(_RUNC)
        runc.chmod(0o755)
        _run("openssl", "genrsa", "-out", str(self._place / "sa.key"), "2048")
        self._write_tokens()

    def start(self) -> None:
        """See `PrivateServer`."""
        self._spawn(
            "etcd", "etcd", f"--data-dir={self._place}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
            "--initial-advertise-peer-urls=http://127.0.0.1:" + str(self._peer),
            f"--initial-cluster=default=http://127.0.0.1:{self._peer}",
        )  # fmt: skip
        self.start_server()
        conf = f"--kubeconfig={self.admin}"
        self._spawn(
            "controllers", str(self._binaries / "kube-controller-manager"), conf, "--leader-elect=false",
            f"--service-account-private-key-file={self._place}/sa.key",
            f"--root-ca-file={self._place}/certs/apiserver.crt", "--node-monitor-period=1s",
            "--node-monitor-grace-period=20s", f"--secure-port={self._health}", "--port=0",
            f"--cert-dir={self._place}/ccerts",
        )  # fmt: skip
        self._spawn(
            "scheduler", str(self._binaries / "kube-scheduler"), conf, "--leader-elect=false", "--port=0",
            f"--secure-port={self._other}", f"--cert-dir={self._place}/scerts",
        )  # fmt: skip
        for name in self._names:
            self.boot(name)
        self._until(lambda: len(self.ready()) == len(self._names), "kubelet")
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.api.call("POST", f"{_RBAC}/roles", {"metadata": {"name": "trainmaster"}, "rules": RULES})
        self.api.call("POST", "serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        for name in ("default", SERVICE_ACCOUNT):  # pods are refused until it has a token
            self._until(partial(self._has_token, name), f"service account {name}")
        self._bind()

    def close(self) -> None:
        """See `PrivateServer`."""
        for name in list(self._started):
            if not name.startswith("docker"):
                self._end(name)
        for name in self._names:
            self._docker_end(name)
        for name in list(self._started):
            self._end(name)
        if self._held is not None:
            self._sweep()
            self._held.close()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith((f"{self._place}/", f"{self._disk}/")):
                _run("umount", "-l", place, check=False)
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.rmtree(self._disk, ignore_errors=True)

    def start_server(self) -> None:
        """The API server is there, with all that it knew."""
        self._spawn(
            "apiserver", str(self._binaries / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd}", f"--cert-dir={self._place}/certs",
            f"--bind-address={_SERVER}", f"--secure-port={_SERVER_PORT}",
            f"--token-auth-file={self._place}/tokens.csv", "--authorization-mode=RBAC",
            "--service-account-issuer=https://lab", f"--service-account-key-file={self._place}/sa.key",
            f"--service-account-signing-key-file={self._place}/sa.key",
            "--kubelet-preferred-address-types=InternalIP", "--service-cluster-ip-range=10.86.0.0/24",
            "--allow-privileged=true",
        )  # fmt: skip
        authority = self._place / "certs" / "apiserver.crt"
        self._until(authority.exists, "apiserver")
        if not self.admin.exists():
            self._write_login("admin", self.admin)
            self.log_in()
        self._until(self._answers, "apiserver")

    def stop_server(self) -> None:
        """The API server is killed; pods go on."""
        self._end("apiserver")

    def end_login(self) -> None:
        """The user's token is over: the API server, started again, takes another one."""
        self._tokens["alice"] = secrets.token_hex(16)
        self._write_tokens()
        self.stop_server()
        self.start_server()

    def log_in(self) -> None:
        """The user has a token that is taken, in the same file."""
        self._write_login("alice", self.kubeconfig)

    def boot(self, name: str) -> None:
        """A node is there, with nothing on it."""
        number = self._names.index(name) + 1
        disk = self._disk / name
        disk.mkdir(parents=True, exist_ok=True)
        own = self._place / name
        own.mkdir(exist_ok=True)
        inside = ("nsenter", f"--net=/run/netns/tmk8s-{name}")
        sock = f"unix://{own}/docker.sock"
        self._spawn(
            f"docker-{name}", *inside, "dockerd", f"--add-runtime=lab={self._place}/runc-lab",
            "--default-runtime=lab", f"--data-root={disk}/docker", f"--exec-root={own}/exec", f"-H={sock}",
            f"--pidfile={own}/docker.pid", f"--bip=10.85.{number}.1/24", "--iptables=false",
            "--ip-masq=false", "--exec-opt=native.cgroupdriver=cgroupfs", f"--cgroup-parent=/tm-k8s-{name}",
        )  # fmt: skip
        self._until(lambda: not self._docker(name, "version", check=False).returncode, "dockerd")
        self._images(name, own)
        self._spawn(
            f"kubelet-{name}", *inside, str(self._binaries / "kubelet"), f"--kubeconfig={self.admin}",
            f"--root-dir={disk}/kubelet", f"--docker-endpoint={sock}", "--container-runtime=docker",
            "--pod-infra-container-image=pause:lab", f"--hostname-override={name}",
            f"--node-ip=10.84.0.{number}", "--cgroup-driver=cgroupfs", "--cgroups-per-qos=false",
            "--enforce-node-allocatable=", "--fail-swap-on=false", "--resolv-conf=", "--anonymous-auth=true",
            "--authorization-mode=AlwaysAllow", f"--cert-dir={own}/certs", "--eviction-hard=",
            "--image-gc-high-threshold=100", "--node-status-update-frequency=2s", "--healthz-port=0",
            "--sync-frequency=3s",
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """A node, and all that runs there, ends at once."""
        self._end(f"kubelet-{name}")
        self._docker_end(name)
        self._end(f"docker-{name}")

    def remove(self, name: str) -> None:
        """It ends, and whoever looks after the nodes deletes it."""
        self.kill(name)
        self.api.call("DELETE", f"/api/v1/nodes/{name}")

    # --- what is seen, and done ----------------------------------------------------------------------------

    @property
    def api(self) -> KubeApi:
        """As one who may do all."""
        return KubeApi(read_login("", {"KUBECONFIG": str(self.admin)}), NAMESPACE)

    def ready(self) -> list[str]:
        """Names of the nodes that work."""
        return [
            each["metadata"]["name"]
            for each in self.api.all("/api/v1/nodes")
            if any(
                c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", ())
            )
        ]

    def node_of(self, name: str) -> str:
        """The node that a pod is on."""
        return str(self.api.call("GET", f"pods/{name}")["spec"]["nodeName"])

    def left(self) -> list[str]:
        """Pods that are there and do not go."""
        return [
            each["metadata"]["name"]
            for each in self.api.all("pods")
            if "deletionTimestamp" not in each["metadata"]
            and each["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def evict(self, name: str, *, grace_s: int | None = None) -> None:
        """As somebody who drains its node does; grace_s: None for the pod's own."""
        body: dict[str, Any] = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name},
        }
        if grace_s is not None:
            body["deleteOptions"] = {"gracePeriodSeconds": grace_s}
        self.api.call("POST", f"pods/{name}/eviction", body)

    @property
    def pod_limit(self) -> int | None:
        """Of a quota of the namespace."""
        return self._pod_limit

    @pod_limit.setter
    def pod_limit(self, limit: int | None) -> None:
        self._pod_limit = limit
        if limit is None:
            with gone_is_fine():
                self.api.call("DELETE", "resourcequotas/q")
            return
        for each in self.api.all("pods"):  # those that go count, and it may take a minute
            name = each["metadata"]["name"]
            with gone_is_fine():
                self.api.call("DELETE", f"pods/{name}", query={"gracePeriodSeconds": "0"})
        self.api.call(
            "POST", "resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": str(limit)}}}
        )
        self._until(
            lambda: (self.api.call("GET", "resourcequotas/q").get("status") or {}).get("used"), "quota"
        )

    @property
    def forbidden(self) -> set[str]:
        """Whether the user has lost what is needed."""
        return self._forbidden

    @forbidden.setter
    def forbidden(self, verbs: set[str]) -> None:
        self._forbidden = verbs
        if verbs:
            self.api.call("DELETE", f"{_RBAC}/rolebindings/trainmaster")
        else:
            self._bind()

    def log(self) -> str:
        """The end of what its parts have said."""
        lines = []
        for path in sorted(self._place.glob("*.log")):
            lines += [f"{path.stem}: {line}" for line in path.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(lines)

    # --- private -------------------------------------------------------------------------------------------

    def _write_tokens(self) -> None:
        groups = {"admin": "system:masters", "alice": "researchers"}
        lines = [f'{token},{name},{name},"{groups[name]}"\n' for name, token in self._tokens.items()]
        (self._place / "tokens.csv").write_text("".join(lines))

    def _write_login(self, name: str, file: Path) -> None:
        authority = str(self._place / "certs" / "apiserver.crt")
        cluster = {"server": f"https://{_SERVER}:{_SERVER_PORT}", "certificate-authority": authority}
        context = {"cluster": "l", "user": name, "namespace": NAMESPACE}
        told = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "l", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self._tokens[name]}}],
            "contexts": [{"name": "lab", "context": context}],
        }  # fmt: skip
        file.touch(mode=0o600)
        file.write_text(json.dumps(told))

    def _bind(self) -> None:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "trainmaster"}
        subjects = [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"},
            {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE},
        ]
        body = {"metadata": {"name": "trainmaster"}, "roleRef": role, "subjects": subjects}
        self.api.call("POST", f"{_RBAC}/rolebindings", body)
        user = KubeApi(read_login("", {"KUBECONFIG": str(self.kubeconfig)}), NAMESPACE)
        self._until(lambda: user.may("create", "pods"), "the role")

    def _has_token(self, account: str) -> bool:
        return bool(self.api.call("GET", f"serviceaccounts/{account}").get("secrets"))

    def _answers(self) -> bool:
        with contextlib.suppress(Exception):
            return self.api.text("/readyz") == "ok"
        return False

    def _images(self, name: str, own: Path) -> None:
        """``pause:lab`` has a program that waits, ``work:lab`` whatever is mounted at ``/usr``."""
        if self._docker(name, "image", "inspect", "work:lab", check=False).returncode == 0:
            return
        for image in ("pause", "work"):
            tree = own / image
            (tree / "bin").mkdir(parents=True)
            if image == "pause":
                for program in ("sh", "sleep"):
                    shutil.copy(shutil.which("busybox") or "", tree / "bin" / program)
            else:
                (tree / "bin").rmdir()
                for place in ("bin", "sbin", "lib", "lib64"):
                    (tree / place).symlink_to(f"usr/{place}")
                for place in ("usr", "root", "tmp", "var/tmp", "run", "etc", "proc", "sys", "dev"):
                    (tree / place).mkdir(parents=True)
                (tree / "tmp").chmod(0o1777)
                (tree / "var/tmp").chmod(0o1777)
                for file in ("passwd", "group", "ld.so.cache", "os-release", "alternatives", "ssl/certs"):
                    source, there = Path("/etc") / file, tree / "etc" / file
                    there.parent.mkdir(parents=True, exist_ok=True)
                    if source.is_dir():
                        shutil.copytree(source, there, symlinks=True)
                    elif source.exists():
                        shutil.copy(source, there)
            packed = subprocess.run(["tar", "-C", tree, "-c", "."], capture_output=True, check=True).stdout
            self._docker(
                name,
                "import",
                "-c",
                """CMD ["/bin/sh","-c","trap 'exit 0' TERM; sleep 1000000 & wait"]""",
                "-",
                f"{image}:lab",
                data=packed,
            )

    def _docker(
        self, name: str, *words: str, data: bytes | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        host = {"DOCKER_HOST": f"unix://{self._place}/{name}/docker.sock"}
        return subprocess.run(
            ["docker", *words], input=data, capture_output=True, check=check, env={**os.environ, **host}
        )

    def _docker_end(self, name: str) -> None:
        with contextlib.suppress(OSError):
            for _ in range(3):
                found = self._docker(name, "ps", "-aq", check=False).stdout.decode().split()
                if not found:
                    return
                self._docker(name, "rm", "-f", *found, check=False)

    def _spawn(self, name: str, *words: str) -> None:
        self._started[name] = spawn(words, self._place / f"{name}.log")

    def _end(self, name: str) -> None:
        process = self._started.pop(name, None)
        if process is not None:
            for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience_s)
                    return

    def _until(self, done: Callable[[], Any], name: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(KubeRefusedError):
                if done():
                    return
            dead = [key for key, each in self._started.items() if each.poll() is not None]
            if time.monotonic() > deadline or dead:
                raise NoKubernetesError(f"{name} does not come ({dead}):\n{self.log()}")
            time.sleep(0.2)

    def _sweep(self) -> None:
        """What one that was killed has left."""
        for space in Path("/run/netns").glob("tmk8s-*"):
            for pid in _run("ip", "netns", "pids", space.name, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _run("ip", "netns", "del", space.name, check=False)
        for device in Path("/sys/class/net").glob("tmk8s*"):
            _run("ip", "link", "del", device.name, check=False)


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise NoKubernetesError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done


def main() -> None:
    """A Kubernetes to try, until it is interrupted."""
    with PrivateKubernetes.installed(2) as kubernetes:
        stay(
            f"export KUBECONFIG={kubernetes.kubeconfig}\n"
            f"two nodes, and you may use the namespace {NAMESPACE}; Ctrl-C ends it\n"
        )


if __name__ == "__main__":
    main()
