"""`PrivateKubernetes`: a real Kubernetes of one's own, with nodes that are namespaces of this machine.

`make kubernetes` builds its programs, of 1.20, from Debian's source (``scripts/build_kubernetes.sh``); the
variable ``TRAINMASTER_KUBERNETES_PROGRAMS`` names a directory with those of another version. It needs root
and Debian's ``etcd-server containerd containernetworking-plugins busybox-static``. Each node has a kubelet
and a containerd of its own. ``python -m trainmaster.testing.private_kubernetes`` starts one to try.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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
#: Names a directory with the four programs of another version.
PROGRAMS: Final = "TRAINMASTER_KUBERNETES_PROGRAMS"
NAMESPACE: Final = "research"
_BINARIES: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_PROGRAMS: Final = ("etcd", "containerd", "ctr", "runc", "openssl", "ip", "nsenter", "busybox")
_PLUGINS: Final = Path("/usr/lib/cni")
_PACKAGES: Final = "etcd-server containerd containernetworking-plugins busybox-static"
_PATIENCE_S: Final = 180.0
#: The kubelet gives sandboxes an oom_score_adj that takes a right which virtual machines may lack.
_CONTAINERD: Final = """\
version = 2
root = "{disk}/containerd"
state = "{own}/containerd"
[grpc]
address = "{own}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:lab"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{own}/cni"
"""
_KUBELET: Final = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}}, "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failCgroupV1": False,
    "failSwapOn": False, "resolvConf": "", "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100, "nodeStatusUpdateFrequency": "2s", "healthzPort": 0,
    "syncFrequency": "3s",
}  # fmt: skip
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
        self._minor = 0

    @classmethod
    def installed(cls, nodes: int = 1) -> Self:
        """One that can be started.

        Raises:
            NoKubernetesError: what is missing.
        """
        binaries = Path(os.environ.get(PROGRAMS) or default_cache() / DIRECTORY)
        if missing := [name for name in _BINARIES if not (binaries / name).exists()]:
            raise NoKubernetesError(f"{binaries} has no {missing[0]}; `make kubernetes` builds it")
        missing = [name for name in _PROGRAMS if shutil.which(name) is None]
        missing += [name for name in ("bridge", "host-local", "loopback") if not (_PLUGINS / name).exists()]
        if missing:
            raise NoKubernetesError(f"{', '.join(missing)} not installed (Debian: {_PACKAGES})")
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
        told = _run(str(self._binaries / "kube-apiserver"), "--version").stdout
        self._minor = int(told.split("v1.")[1].split(".")[0])
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
        shared = [f"--kubeconfig={self.admin}", "--leader-elect=false"]
        shared += ["--port=0"] if self._minor < 24 else []  # else there is none without encryption
        self._spawn(
            "controllers", str(self._binaries / "kube-controller-manager"), *shared,
            f"--service-account-private-key-file={self._place}/sa.key",
            f"--root-ca-file={self._place}/certs/apiserver.crt", "--node-monitor-period=1s",
            "--node-monitor-grace-period=20s", f"--secure-port={self._health}",
            f"--cert-dir={self._place}/ccerts",
        )  # fmt: skip
        self._spawn(
            "scheduler", str(self._binaries / "kube-scheduler"), *shared,
            f"--secure-port={self._other}", f"--cert-dir={self._place}/scerts",
        )  # fmt: skip
        for name in self._names:
            self.boot(name)
        self._until(lambda: len(self.ready()) == len(self._names), "kubelet")
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.api.call("POST", f"{_RBAC}/roles", {"metadata": {"name": "trainmaster"}, "rules": RULES})
        self.api.call("POST", "serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        for name in ("default", SERVICE_ACCOUNT):  # it has to be there and, in 1.20, to have a token
            self._until(partial(self._may_have_pods, name), f"service account {name}")
        self._bind()

    def close(self) -> None:
        """See `PrivateServer`."""
        for name in list(self._started):
            self._end(name)
        _end_pods(str(self._place))
        if self._held is not None:
            self._sweep()
            self._held.close()
        _unmount(self._place, self._disk)
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
        (own / "containerd.toml").write_text(_CONTAINERD.format(own=own, disk=disk, plugins=_PLUGINS))
        ranges = {"type": "host-local", "subnet": f"10.85.{number}.0/24", "dataDir": f"{own}/addresses"}
        bridge = {
            "type": "bridge", "bridge": "pods", "isGateway": True,
            "ipam": ranges | {"routes": [{"dst": "0.0.0.0/0"}]},
        }  # fmt: skip
        (own / "cni").mkdir(exist_ok=True)
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (own / "cni" / "pods.conflist").write_text(json.dumps(network))
        self._spawn(f"containerd-{name}", *inside, "containerd", f"--config={own}/containerd.toml")
        self._until(lambda: not self._ctr(name, "version", check=False).returncode, "containerd")
        for image in ("pause", "work"):
            self._ctr(name, "images", "import", str(self._image(image)))
        endpoint = f"unix://{own}/containerd.sock"
        old = ["--container-runtime=remote", f"--container-runtime-endpoint={endpoint}"]
        (own / "kubelet.yaml").write_text(json.dumps(_KUBELET | {"containerRuntimeEndpoint": endpoint}))
        self._spawn(
            f"kubelet-{name}", *inside, str(self._binaries / "kubelet"), f"--kubeconfig={self.admin}",
            f"--config={own}/kubelet.yaml", f"--root-dir={disk}/kubelet", f"--hostname-override={name}",
            f"--node-ip=10.84.0.{number}", f"--cert-dir={own}/certs", *(old if self._minor < 27 else []),
        )  # fmt: skip

    def cut(self, name: str) -> None:
        """Nobody hears of a node any more, nor it of anybody; what runs there goes on."""
        self._end(f"kubelet-{name}")
        self._end(f"containerd-{name}")

    def kill(self, name: str) -> None:
        """A node, and all that runs there, ends at once."""
        own, disk = self._place / name, self._disk / name / "containerd"
        self.cut(name)
        _end_pods(str(own))
        _unmount(own, disk)
        for each in (own / "containerd", own / "addresses", disk):
            shutil.rmtree(each, ignore_errors=True)

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
            "apiVersion": "policy/v1" if self._minor >= 22 else "policy/v1beta1",
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
    def has_levels(self) -> bool:
        """Whether a namespace may be ``restricted``."""
        return self._minor >= 23

    def restrict(self, *, is_restricted: bool) -> None:
        """Pods of the namespace may do no more than they need; or whatever they like, as ever."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted" if is_restricted else None}
        body = {"metadata": {"labels": labels}}
        self.api.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}", body, kind="application/merge-patch+json")

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

    def _may_have_pods(self, account: str) -> bool:
        spec = {"serviceAccountName": account, "containers": [{"name": "c", "image": "work:lab"}]}
        self.api.call("POST", "pods", {"metadata": {"name": "p"}, "spec": spec}, query={"dryRun": "All"})
        return True

    def _answers(self) -> bool:
        with contextlib.suppress(Exception):
            return self.api.text("/readyz") == "ok"
        return False

    def _image(self, image: str) -> Path:
        """A file with ``pause``, which has a program that waits, or ``work``, with what is at ``/usr``."""
        packed = self._place / f"{image}.tar"
        if packed.exists():
            return packed
        tree = self._place / f"image-{image}"
        root = tree / "root"
        (root / "bin").mkdir(parents=True)
        if image == "pause":
            for program in ("sh", "sleep"):
                shutil.copy(shutil.which("busybox") or "", root / "bin" / program)
        else:
            (root / "bin").rmdir()
            for place in ("bin", "sbin", "lib", "lib64"):
                (root / place).symlink_to(f"usr/{place}")
            for place in ("usr", "root", "tmp", "var/tmp", "run", "etc", "proc", "sys", "dev"):
                (root / place).mkdir(parents=True)
            (root / "tmp").chmod(0o1777)
            (root / "var/tmp").chmod(0o1777)
            for file in ("passwd", "group", "ld.so.cache", "os-release", "alternatives", "ssl/certs"):
                source, there = Path("/etc") / file, root / "etc" / file
                there.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, there, symlinks=True)
                elif source.exists():
                    shutil.copy(source, there)
        _run("tar", "-C", str(root), "-cf", str(tree / "layer.tar"), ".")
        digest = hashlib.sha256((tree / "layer.tar").read_bytes()).hexdigest()
        waits = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
        config = {
            "architecture": "amd64", "os": "linux", "config": {"Cmd": waits},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }  # fmt: skip
        (tree / "config.json").write_text(json.dumps(config))
        manifest = [{"Config": "config.json", "RepoTags": [f"{image}:lab"], "Layers": ["layer.tar"]}]
        (tree / "manifest.json").write_text(json.dumps(manifest))
        _run("tar", "-C", str(tree), "-cf", str(packed), "manifest.json", "config.json", "layer.tar")
        return packed

    def _ctr(self, name: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        address = str(self._place / name / "containerd.sock")
        return _run("ctr", "--address", address, "--namespace", "k8s.io", *words, check=check)

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
        _end_pods("/run/tm-k8s-")
        for space in Path("/run/netns").glob("tmk8s-*"):
            for pid in _run("ip", "netns", "pids", space.name, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _run("ip", "netns", "del", space.name, check=False)
        for device in Path("/sys/class/net").glob("tmk8s*"):
            _run("ip", "link", "del", device.name, check=False)


def _end_pods(place: str) -> None:
    """What runs in containers of each containerd whose socket is below a place, and what watches them."""
    shims = set[int]()
    parents = dict[int, int]()
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (proc / "cmdline").read_text().split("\0")
            parents[int(proc.name)] = int((proc / "stat").read_text().rpartition(")")[2].split()[1])
            if "containerd-shim" in words[0] and any(each.startswith(place) for each in words):
                shims.add(int(proc.name))
    for pid in [*(pid for pid, parent in parents.items() if parent in shims), *shims]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _unmount(*places: Path) -> None:
    """Whatever is mounted below them."""
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        if line.split()[1].startswith(tuple(f"{each}/" for each in places)):
            _run("umount", "-l", line.split()[1], check=False)


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
