"""What another team has, and a query, a body or a recipe names, is no more there than in a path."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")
from served_office import Office

#: Names of what another team has, and of what nobody has: as long, and as near to what there is.
THEIRS = {"run": "job-blue", "name": "theirs-all", "cluster": "c-theirs"}
NOBODYS = {"run": "job-blxe", "name": "theirx-all", "cluster": "c-theirx"}
RECIPE = "name: job\nprovider: aws\nexperiments:\n  main: {workers: 1, command: 'true', %s}\n"
SEARCH = "parameters: {lr: {min: 0.1, max: 1}}, samples: 2, search: {metric: loss, goal: min, from: {run}}"


def recipe(more):
    return {"json": {"recipe": RECIPE % more, "max_usd": 1}}


#: What names something: method, path, and what the request has beside its path. All are for members.
NAMING = [
    *[
        ("GET", f"/api/v1/{path}", {})
        for path in (
            "find-run?name={run}", "find-model?name={run}", "models?run={run}", "models?cursor={run}/main/0",
            "compare?run=job-red&run={run}", "runs?cursor={run}", "logs?text=hello&cursor={run}",
            "models-diff?a=job-red&b={run}", "models-diff?a=job-red&b={name}@1",
            "recommend?profile={run}/main",
            "runs?where=run+%3D+{run}", "runs?name={run}", "cost?by=team&where=run+%3D+{run}",
        )
    ],
    ("POST", "/api/v1/runs/cancel", {"json": {"runs": ["{run}"]}}),
    ("POST", "/api/v1/storage/remove-runs", {"json": {"runs": ["{run}"], "dry_run": True}}),
    ("POST", "/api/v1/storage/remove-runs", {"json": {"where": "run = {run}", "dry_run": True}}),
    ("POST", "/api/v1/operations/models-fsck", {"json": {"runs": ["{run}"]}}),
    ("POST", "/api/v1/operations/volume-fsck", {"json": {"volume": "{name}"}}),
    ("POST", "/api/v1/apps", {"json": {"kind": "tensorboard", "runs": ["{run}"]}}),
    ("POST", "/api/v1/apps", {"json": {"kind": "port", "runs": ["{run}"], "port": 80}}),
    ("POST", "/api/v1/registry", {"json": {"model": "{run}", "name": "own"}}),
    ("POST", "/api/v1/clusters/end", {"json": {"clusters": ["{cluster}"]}}),
    ("POST", "/api/v1/runs", {"json": {"plan": "{plan}"}}),
    ("POST", "/api/v1/uploads/{own}/finish", {"json": {"volume": "v", "uploads": ["{upload}"]}}),
    *[
        ("POST", f"/api/v1/{path}", recipe(more))
        for path in ("recipes/check", "runs", "runs/dry-run")
        for more in (
            "checkpoint: {from: {run}}", SEARCH, "data: {x: {model: {name}@1}}",
            "data: {x: {volume: {name}}}",
            "serve: {model: {name}@1, port: 80}", "serve: {model: {run}/main/0, port: 80}",
        )
    ],
]  # fmt: skip


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    found = Office(tmp_path_factory.mktemp("office"))
    yield found
    found.service.close()


def filled(value, names):
    if isinstance(value, str):
        return re.sub(r"{(\w+)}", lambda found: names.get(found[1], found[0]), value)
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    return [filled(each, names) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("method", "path", "more"), NAMING, ids=lambda part: str(part)[:100])
def test_what_is_named_of_another_team_is_as_what_nobody_has(office, method, path, more):
    own = office.ask(
        "member", "POST", "/api/v1/uploads", json={"name": "a", "size_bytes": 0, "kind": "volume"}
    ).json()["upload"]
    ids = {key: office.blue[key] for key in ("plan", "upload")}
    told = []
    for names in (
        {**THEIRS, **ids, "own": own},
        {**NOBODYS, **{key: f"{each[:-1]}z" for key, each in ids.items()}, "own": own},
    ):
        answer = office.ask("member", method, filled(path, names), **filled(more, names))
        text = answer.text
        for key, name in names.items():
            text = text.replace(name, f"<{key}>")
        told.append((answer.status_code, text))
    assert told[0] == told[1]
    assert "theirs" not in told[0][1]
