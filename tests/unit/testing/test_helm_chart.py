"""The Helm chart of a server: its objects, and that it may do no more than docs/kubernetes.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from trainmaster.testing.helm_chart import rendered, values_of
from trainmaster.testing.private_kubernetes import RULES

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "trainmaster"
OWN = {"image": "registry.example.org/trainmaster:1"}


def by_kind(**changes: Any) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in rendered(CHART, values_of(CHART, **{**OWN, **changes}))}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_its_rights_are_those_of_the_docs_and_of_the_tests() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    found = next(
        block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Role" in block
    )
    role = plain(YAML(typ="safe", pure=True).load(found))
    assert role["rules"] == plain(by_kind()["Role"]["rules"]) == RULES
    assert not any("*" in str(rule) or "secrets" in str(rule) for rule in RULES)


def test_what_is_installed() -> None:
    found = by_kind(url="https://tm.example.org", store="s3://bucket/x", databaseSecret="db")
    assert set(found) == {
        "ConfigMap", "Deployment", "PersistentVolumeClaim", "Role", "RoleBinding", "Service", "ServiceAccount"
    }  # fmt: skip
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["trainmaster"]
    assert container["args"][0] == "server"
    assert container["args"][1:] == [
        "--host=0.0.0.0", "--local-runs=none", "--url=https://tm.example.org", "--self-signed"
    ]  # fmt: skip
    env = {each["name"]: each for each in container["env"]}
    assert env["TRAINMASTER_STORE"]["value"] == "s3://bucket/x"
    assert env["TRAINMASTER_DATABASE"]["valueFrom"]["secretKeyRef"] == {"name": "db", "key": "url"}
    settings = YAML(typ="safe", pure=True).load(found["ConfigMap"]["data"]["kubernetes.yaml"])
    assert settings["machines"]["cpu"] == {"cpus": 4, "memory": "16GB"}
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_behind_a_proxy_and_without_a_volume() -> None:
    found = by_kind(behindProxy="10.0.0.0/8", persistence={"enabled": False})
    assert "PersistentVolumeClaim" not in found
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["volumes"][0] == {"name": "data", "emptyDir": {}}
    assert spec["containers"][0]["args"][-1] == "--behind-proxy=10.0.0.0/8"
    assert spec["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTP"


def test_an_image_has_to_be_named() -> None:
    with pytest.raises(ValueError, match="image"):
        by_kind(image="")
