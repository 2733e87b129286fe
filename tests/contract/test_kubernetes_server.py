"""What a server says to what a provider may ask of it: the double as a real Kubernetes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from test_kubernetes_provider import KubernetesBench, _until, kubernetes

from trainmaster.providers.kubernetes import kueue
from trainmaster.providers.kubernetes.manifests import HOME
from trainmaster.transport.base import UnreachableError
from trainmaster.transport.http_calls import gone_is_fine
from trainmaster.transport.kubernetes import api as api_module
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.exec_process import ExecProcess
from trainmaster.transport.kubernetes.login import read_login

__all__ = ["kubernetes"]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
LABEL = "server-test"


class Asker:
    """Somebody who may do what the provider may."""

    def __init__(self, bench: KubernetesBench) -> None:
        self.api = KubeApi(read_login("", bench.environ), "research")
        self._bench, self._number = bench, 0

    def pod(self, size: str = "small", **about: Any) -> dict[str, Any]:
        """One as the provider makes it, with a name of its own; no node has room for a ``large`` one."""
        self._number += 1
        (shown,) = self._bench.provider().dry_run("one", [self._bench.request(instance_type=size)])
        made: dict[str, Any] = json.loads(json.dumps(shown["parameters"]))
        made["metadata"] |= {"name": f"{LABEL}-{self._number}", **about}
        made["metadata"]["labels"]["of"] = LABEL
        return made

    def make(self, size: str = "small", **about: Any) -> str:
        """It, there; its name."""
        return str(self.api.call("POST", "pods", self.pod(size, **about))["metadata"]["name"])

    def running(self) -> str:
        """One whose first process runs, and does not end when it is asked to."""
        made = self.pod()
        made["spec"]["containers"][0] |= {
            "command": ["/bin/sh", "-c", "trap : TERM; while :; do sleep 1; done"]
        }
        made["spec"]["containers"][0]["args"] = []
        name = str(self.api.call("POST", "pods", made)["metadata"]["name"])
        _until(lambda: self.get(name)["status"].get("phase") == "Running")
        return name

    def get(self, name: str) -> dict[str, Any]:
        """As it is now."""
        return self.api.call("GET", f"pods/{name}")

    def is_there(self, name: str) -> bool:
        """Whether it is."""
        return any(each["metadata"]["name"] == name for each in self.api.all("pods"))

    def delete(self, name: str, grace_s: int | None = None) -> None:
        """Ask it to go."""
        query = {} if grace_s is None else {"gracePeriodSeconds": str(grace_s)}
        self.api.call("DELETE", f"pods/{name}", query=query)

    def patch(self, name: str, body: dict[str, Any], kind: str = STRATEGIC) -> dict[str, Any]:
        """Change it."""
        return self.api.call("PATCH", f"pods/{name}", body, kind=kind)

    def end(self) -> None:
        """Nothing of it is left."""
        for each in self.api.all("pods", labelSelector=f"of={LABEL}"):
            name = each["metadata"]["name"]
            if each["metadata"].get("finalizers"):
                with gone_is_fine():
                    self.patch(name, {"metadata": {"finalizers": None}}, MERGE)
            with gone_is_fine():
                self.delete(name, 0)
        _until(lambda: not self.api.all("pods", labelSelector=f"of={LABEL}"))


@pytest.fixture
def asker(kubernetes: Any, tmp_path: Path) -> Iterator[Asker]:
    """Somebody of whom nothing is left afterwards."""
    made = Asker(KubernetesBench(kubernetes, tmp_path))
    yield made
    made.end()


def refused(call: Any) -> KubeRefusedError:
    """With what a call is refused."""
    with pytest.raises(KubeRefusedError) as caught:
        call()
    return caught.value


CONTAINER = ("spec", "containers", 0)
HALF = {"requests": {"nvidia.com/gpu": "0.5"}, "limits": {"nvidia.com/gpu": "0.5"}}
WRONG = {
    "its name": (("metadata", "name"), "No_Name", 422, "metadata.name: Invalid value"),
    "no name": (("metadata", "name"), "", 422, "name or generateName is required"),
    "a label": (("metadata", "labels", HOME), "a b", 422, "metadata.labels: Invalid value"),
    "a long label": (("metadata", "labels", HOME), "a" * 64, 422, "metadata.labels: Invalid value"),
    "a note": (("metadata", "annotations", "a b"), "", 422, "metadata.annotations: Invalid value"),
    "another namespace": (("metadata", "namespace"), "elsewhere", 400, "does not match the namespace"),
    "another kind": (("kind",), "Service", 400, ""),
    "its image": ((*CONTAINER, "image"), "", 422, "Required value"),
    "two mounts in one place": (
        (*CONTAINER, "volumeMounts", 0, "mountPath"),
        "/dev/shm",
        422,
        "must be unique",
    ),
    "a mount of nothing": ((*CONTAINER, "volumeMounts", 0, "name"), "other", 422, "Not found"),
    "more than its limit": ((*CONTAINER, "resources", "requests", "cpu"), "200m", 422, "cpu limit"),
    "half a GPU": ((*CONTAINER, "resources"), HALF, 422, "must be an integer"),
    "no amount": ((*CONTAINER, "resources", "limits", "cpu"), "much", 400, "quantities must match"),
    "a selector": (("spec", "nodeSelector"), {"pool": "a b"}, 422, "spec.nodeSelector"),
    "an effect": (("spec", "tolerations", 0, "effect"), "Never", 422, "Unsupported value|Invalid value"),
    "seconds without an end": (
        ("spec", "tolerations", 0, "effect"),
        "NoSchedule",
        422,
        "must be 'NoExecute'",
    ),
    "how it is started again": (("spec", "restartPolicy"), "Sometimes", 422, "Unsupported value"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_pod_is_refused(asker: Asker, what: str) -> None:
    """Also where it is only asked what would be said; a mistake in a manifest is seen on the double, too."""
    path, value, status, words = WRONG[what]
    made = asker.pod()
    *way, last = path
    at: Any = made
    for each in way:
        at = at[each]
    at[last] = value
    for query in ({"dryRun": "All"}, {}):
        found = refused(lambda query=query: asker.api.call("POST", "pods", made, query=query))
        assert found.status == status, found.words
        assert re.search(words, found.words), found.words


def test_what_has_no_node_is_deleted_at_once(asker: Asker) -> None:
    """There is nobody who has to be waited for."""
    name = asker.make("large")
    assert refused(lambda: asker.api.call("POST", "pods", asker.pod(name=name))).status == 409
    asker.delete(name)
    assert not asker.is_there(name)
    assert refused(lambda: asker.delete(name)).is_gone
    assert refused(lambda: asker.patch(name, kueue.LET_GO)).is_gone


def test_a_finalizer_keeps_what_is_deleted_until_it_is_let_go(asker: Asker) -> None:
    """As those do which Kueue gives to pods; its name is taken meanwhile."""
    name = asker.make("large", finalizers=[kueue.FINALIZER, "example.org/other"])
    asker.delete(name)
    about = asker.get(name)["metadata"]
    assert about["deletionTimestamp"]
    assert about["deletionGracePeriodSeconds"] == 0
    assert refused(lambda: asker.api.call("POST", "pods", asker.pod(name=name))).status == 409
    more = {"metadata": {"finalizers": ["example.org/more"]}}
    assert refused(lambda: asker.patch(name, more)).status == 422
    asker.patch(name, kueue.LET_GO, MERGE)  # of that kind nothing is known there
    assert kueue.FINALIZER in asker.get(name)["metadata"]["finalizers"]
    asker.patch(name, kueue.LET_GO)
    assert asker.get(name)["metadata"]["finalizers"] == ["example.org/other"]
    asker.patch(name, {"metadata": {"finalizers": None}}, MERGE)
    assert not asker.is_there(name)


def test_what_runs_has_its_time_which_is_made_shorter_and_never_longer(asker: Asker) -> None:
    """By whoever asks for less."""
    name = asker.running()
    asker.delete(name, 40)
    first = asker.get(name)["metadata"]
    asker.delete(name, 60)
    asker.delete(name)
    assert asker.get(name)["metadata"]["deletionTimestamp"] == min(
        first["deletionTimestamp"], asker.get(name)["metadata"]["deletionTimestamp"]
    )
    asker.delete(name, 1)
    assert not asker.is_there(name) or (
        asker.get(name)["metadata"]["deletionTimestamp"] < first["deletionTimestamp"]
    )
    _until(lambda: not asker.is_there(name))


def test_what_is_deleted_by_force_is_no_more(asker: Asker) -> None:
    """Whatever its node knows of it."""
    name = asker.running()
    asker.delete(name, 0)
    assert not asker.is_there(name)


def test_patches_are_of_a_kind_and_of_metadata(asker: Asker) -> None:
    """The rest of a pod stays as it is."""
    name = asker.make("large", finalizers=["example.org/other"])
    note = {"metadata": {"annotations": {"a": "1"}}}
    assert refused(lambda: asker.patch(name, note, "application/json")).status == 415
    before = asker.get(name)["metadata"]["annotations"]
    for kind in (MERGE, STRATEGIC):
        assert asker.patch(name, note, kind)["metadata"]["annotations"] == before | {"a": "1"}
        asker.patch(name, {"metadata": {"annotations": {"a": None}}}, kind)
        assert asker.get(name)["metadata"]["annotations"] == before
    asker.patch(name, {"metadata": {"finalizers": [kueue.FINALIZER]}})
    assert sorted(asker.get(name)["metadata"]["finalizers"]) == ["example.org/other", kueue.FINALIZER]
    asker.patch(name, {"metadata": {"finalizers": ["example.org/other"]}}, MERGE)
    assert asker.get(name)["metadata"]["finalizers"] == ["example.org/other"]
    found = refused(lambda: asker.patch(name, {"spec": {"nodeSelector": {"pool": "x"}}}))
    assert (found.status, "pod updates may not change fields" in found.words) == (422, True)


def test_lists_come_in_pages(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod once."""
    names = {asker.make("large") for _ in range(3)}
    monkeypatch.setattr(api_module, "_PAGE", 1)
    found = [each["metadata"]["name"] for each in asker.api.all("pods", labelSelector=f"of={LABEL}")]
    assert sorted(found) == sorted(names)


def test_what_does_not_run_is_not_reached(asker: Asker) -> None:
    """No command can be started where there is no node, or nothing any more; and nothing was said."""
    name = asker.make("large")
    with pytest.raises(UnreachableError, match="does not have a host assigned"):
        asyncio.run(ExecProcess.start(asker.api, name, "true", name))
    assert asker.api.text(f"pods/{name}/log") == ""
    made = asker.pod()
    made["spec"]["containers"][0] |= {"command": ["/bin/sh", "-c", "echo said; exit 7"], "args": []}
    name = str(asker.api.call("POST", "pods", made)["metadata"]["name"])
    _until(lambda: asker.get(name)["status"].get("phase") == "Failed")
    assert asker.api.text(f"pods/{name}/log") == "said\n"
    with pytest.raises(UnreachableError, match="container not found"):
        asyncio.run(ExecProcess.start(asker.api, name, "true", name))
