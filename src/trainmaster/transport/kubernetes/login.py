"""`KubeLogin`: who asks which Kubernetes: of the files that ``kubectl`` reads, or of the pod that this is."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.addresses import is_loopback, url_parts
from trainmaster.spec.errors import ProviderError, UsageError, fails_as
from trainmaster.spec.plain_json import list_in, mapping_in, parsed_json, yaml_mapping

_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: The login of a pod, in the place of a context's name.
_OF_POD: Final = "of this pod"
_PLUG_IN_S: Final = 60.0
#: Of a cluster, in a login that was sent to one of its pods.
_KNOWN_AS: Final = "trainmaster-known-as"
#: Where every pod finds its Kubernetes.
_INSIDE: Final = "https://kubernetes.default.svc"
#: What `kubectl` heeds and we do not: without it we would be somebody else, or somewhere else.
_NOT_UNDERSTOOD: Final = (
    "proxy-url", "auth-provider", "tls-server-name", "as", "as-uid", "as-groups", "as-user-extra",
)  # fmt: skip
#: What a login may have that needs nothing beside itself.
_TOLD_OF_CLUSTER: Final = ("server", "certificate-authority-data")
_TOLD_OF_USER: Final = (
    "token", "username", "password", "client-certificate-data", "client-key-data", "_base",
)  # fmt: skip
_HINT: Final = "`kubectl config get-contexts` lists what there is; see docs/kubernetes.md."


@dataclass(frozen=True, slots=True)
class KubeLogin:
    """One context.

    Attributes:
        name: of the context. server: its address. namespace: that it names; empty if none.
        cluster, user: as the file has them.
        base: directory that their paths begin at.
        environ: of the caller, for what tells tokens.
    """

    name: str
    server: str
    namespace: str = ""
    cluster: Mapping[str, Any] = field(default_factory=dict, repr=False)
    user: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """Which Kubernetes it is: the address of its server as the home knows it that has sent this login."""
        return str(self.cluster.get(_KNOWN_AS) or self.server)


def kube_files(environ: Mapping[str, str]) -> list[Path]:
    """Where ``kubectl`` looks."""
    named = [Path(name).expanduser() for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return named or [Path(environ.get("HOME") or Path.home()) / ".kube" / "config"]


def read_login(context: str, environ: Mapping[str, str]) -> KubeLogin:
    """Who asks.

    Args:
        context: of the files; empty for the one that is current there, else the pod that this is.
        environ: the caller's variables.

    Raises:
        UsageError: what is missing; no value is ever told.
    """
    files = [file for file in kube_files(environ) if file.is_file()]
    if not files and context in ("", _OF_POD) and (server := _server_of_pod(environ)):
        space = (_POD / "namespace").read_text().strip() if (_POD / "namespace").exists() else ""
        authority, token = {"certificate-authority": "ca.crt"}, {"tokenFile": "token"}
        return KubeLogin(_OF_POD, server, space, authority, token, _POD, environ)
    if not files:
        looked = ", ".join(map(str, kube_files(environ)))
        raise UsageError(f"there is no login to a Kubernetes: no file {looked}", "Log in as for `kubectl`.")
    found: dict[str, dict[str, tuple[Path, Mapping[str, Any]]]] = {
        "contexts": {},
        "clusters": {},
        "users": {},
    }
    current = context
    for file in files:  # of two alike the first holds
        said = yaml_mapping(file, _HINT)
        current = current or str(said.get("current-context") or "")
        for kind, known in found.items():
            for each in map(mapping_in, list_in(said.get(kind))):
                if "name" in each:
                    known.setdefault(str(each["name"]), (file.parent, mapping_in(each.get(kind[:-1]))))
    if current not in found["contexts"]:
        what = f"no context {current!r}" if current else "no current context"
        raise UsageError(f"{', '.join(map(str, files))}: there is {what}", _HINT)
    _, chosen = found["contexts"][current]
    parts = []
    for kind in ("cluster", "user"):
        name = str(chosen.get(kind) or "")
        if name not in found[f"{kind}s"]:
            raise UsageError(f"context {current!r} names the {kind} {name!r}, which is not there", _HINT)
        parts.append(found[f"{kind}s"][name])
    (base, cluster), (_, user) = parts
    server = str(cluster.get("server") or "").rstrip("/")
    return _checked(
        KubeLogin(
            current,
            (server == _INSIDE and _server_of_pod(environ)) or server,  # its name takes a DNS
            str(chosen.get("namespace") or ""),
            cluster,
            {**user, "_base": str(parts[1][0])},
            base,
            environ,
        )
    )


def _server_of_pod(environ: Mapping[str, str]) -> str:
    """Where a pod is told that its Kubernetes is; empty outside of pods."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}" if host else ""


def login_for_pod(login: KubeLogin, *, is_its_own: bool) -> str:
    """The same login as a file for a pod of that Kubernetes: everything that it needs is in it.

    Args:
        login: of this machine.
        is_its_own: the pod has a service account, whose token it uses; nothing secret is in the file then.

    Raises:
        UsageError: it works on this machine only.
    """
    cluster: dict[str, str] = {"server": login.server}
    user: dict[str, str] = {}
    if is_its_own:
        cluster = {"server": _INSIDE, "certificate-authority": str(_POD / "ca.crt"), _KNOWN_AS: login.place}
        user = {"tokenFile": str(_POD / "token")}
    else:
        for key in ("exec", "tokenFile"):
            if login.user.get(key):
                raise UsageError(
                    f"the login {login.name!r} has a token that is renewed on this machine only ({key})",
                    "Name a `service_account` in kubernetes.yaml that has the role of docs/kubernetes.md.",
                )
        credentials = KubeCredentials(login)
        parts = ((login.cluster, cluster, ("certificate-authority",)),
                 (login.user, user, ("client-certificate", "client-key")))  # fmt: skip
        for told, sent, keys in parts:
            for key in keys:
                if text := credentials.text(told, key):
                    sent[f"{key}-data"] = base64.b64encode(text.encode()).decode()
        user |= {
            key: str(login.user[key]) for key in ("token", "username", "password") if login.user.get(key)
        }
    context = {"cluster": "c", "user": "u", "namespace": login.namespace}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": login.name,
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": login.name, "context": context}],
        }
    )


def check_self_contained(login: KubeLogin) -> None:
    """Refuse a login that starts a program or reads another file.

    Raises:
        UsageError: by which key.
    """
    for told, known in ((login.cluster, _TOLD_OF_CLUSTER), (login.user, _TOLD_OF_USER)):
        if unknown := sorted(str(key) for key, value in told.items() if value and key not in known):
            raise UsageError(
                f"the login {login.name!r} has {', '.join(unknown)}: nothing of it may run programs or read "
                "files where it is used",
                "Use a token, or certificates as `...-data`.",
            )


def _checked(login: KubeLogin) -> KubeLogin:
    """Refuse what could not work, or would give secrets away."""
    address = url_parts(login.server, f"the server of context {login.name!r}")
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise UsageError(
            f"context {login.name!r} leads to {login.server} without encryption", "Write https there."
        )
    if address.scheme not in ("http", "https"):
        raise UsageError(f"context {login.name!r} has no address of a server", _HINT)
    if login.cluster.get("insecure-skip-tls-verify"):
        raise UsageError(
            f"context {login.name!r} says insecure-skip-tls-verify: whoever is between could take its token",
            "Name the certificates of its server as `certificate-authority` there.",
        )
    for key in _NOT_UNDERSTOOD:
        if login.cluster.get(key) or login.user.get(key):
            raise UsageError(
                f"context {login.name!r} has {key!r}, which is not understood here",
                "Name a context without it, with a token, certificates or `exec` of its own.",
            )
    return login


class KubeCredentials:
    """What a login shows the server. Threads share it."""

    def __init__(self, login: KubeLogin) -> None:
        self._login = login
        self._lock = threading.Lock()
        self._told: Mapping[str, Any] | None = None

    def headers(self, *, is_refused: bool = False) -> dict[str, str]:
        """Of a request.

        Args:
            is_refused: the last ones were not taken: a token that is over is asked for again.

        Raises:
            UsageError: there is none, and why.
        """
        if is_refused:  # whoever has logged in again since has another one in the same file
            with contextlib.suppress(UsageError):
                again = read_login(self._login.name, self._login.environ)
                self._login = again if again.server == self._login.server else self._login
        user = self._login.user
        if user.get("username"):
            said = f"{user['username']}:{user.get('password', '')}".encode()
            return {"Authorization": f"Basic {base64.b64encode(said).decode()}"}
        token = str(user.get("token") or "")
        if user.get("tokenFile"):
            file = self._path(str(user["tokenFile"]), user)  # it is renewed there
            with fails_as(f"context {self._login.name!r}: its token cannot be read: {file}", _HINT):
                token = file.read_text()
        elif user.get("exec"):
            with self._lock:
                if self._told is None or is_refused:
                    self._told = self._asked(mapping_in(user["exec"]))
                token = str(self._told.get("token") or "")
        # An end of line within a header is refused, with the whole token in the error.
        token = "".join(token.split())
        return {"Authorization": f"Bearer {token}"} if token else {}

    def context(self) -> ssl.SSLContext | None:
        """Of connections: whom we believe, and the certificate that we show; None without encryption.

        Raises:
            UsageError: a file of it cannot be used.
        """
        if self._login.server.startswith("http://"):
            return None
        cluster, user = self._login.cluster, self._login.user
        self.headers()  # a plug-in tells certificates, too
        told = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
        given = {key: (self._told or {}).get(name) for key, name in told.items()}
        try:
            context = ssl.create_default_context(cadata=self.text(cluster, "certificate-authority") or None)
            pair = [
                given[f"{key}-data"] or self.text(user, key) for key in ("client-certificate", "client-key")
            ]
            if all(pair):
                with os.fdopen(
                    os.memfd_create("tm"), "w"
                ) as file:  # OpenSSL takes no text, and no disk gets it
                    file.write("\n".join(str(each) for each in pair))
                    file.flush()
                    context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except (OSError, ValueError, binascii.Error) as error:
            raise UsageError(
                f"context {self._login.name!r}: its certificates cannot be used: {error}", _HINT
            ) from None
        return context

    def text(self, told: Mapping[str, Any], key: str) -> str:
        """What a key of a file says, or the file that it names; empty if neither is there."""
        if data := told.get(f"{key}-data"):
            return base64.b64decode(str(data)).decode()
        return self._path(str(told[key]), told).read_text() if told.get(key) else ""

    def _path(self, name: str, told: Mapping[str, Any]) -> Path:
        return Path(told.get("_base") or self._login.base) / Path(name).expanduser()

    def _asked(self, plug_in: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a program of the user's tells: a token, or certificates."""
        words = [str(plug_in.get("command") or ""), *map(str, list_in(plug_in.get("args")))]
        own = {str(each["name"]): str(each["value"]) for each in list_in(plug_in.get("env"))}
        version = str(plug_in.get("apiVersion") or "client.authentication.k8s.io/v1")
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environ = {**self._login.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        environ.setdefault("PATH", os.environ.get("PATH", os.defpath))
        if "/" in words[0]:
            words[0] = str(self._path(words[0], self._login.user))
        hint = str(plug_in.get("installHint") or "Is it installed, and on PATH?")
        told = f"{words[0]}, which tells the token of context {self._login.name!r}, cannot be started"
        try:
            with fails_as(told, hint):
                done = subprocess.run(
                    words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PLUG_IN_S, env=environ,
                    check=False,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProviderError(
                f"{words[0]} has told no token in {_PLUG_IN_S:g} s", "Try it by hand."
            ) from None
        with contextlib.suppress(ValueError, AttributeError):
            status = parsed_json(done.stdout).get("status")
            if done.returncode == 0 and isinstance(status, dict):
                return status
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
        raise UsageError(
            f"{words[0]} tells no token for context {self._login.name!r}: {said[0]}", "Log in again with it."
        )
