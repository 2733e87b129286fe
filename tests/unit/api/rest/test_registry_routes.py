"""The model registry over REST: versions, aliases, who wins, and what other teams see of it."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")


@pytest.fixture
def ask(served):
    def ask(method, path="", body=None, who="red-user"):
        answer = served.ask(who, method, f"/api/v1/registry{path}", json=body)
        return answer.status_code, answer.json() if answer.content else None

    return ask


def test_a_model_is_registered_promoted_rolled_back_and_removed(served, ask):
    body = {"model": "job-red", "name": "pets", "alias": "production", "tags": {"owner": "x"}}
    code, found = ask("POST", "", body)
    assert (code, found["version"], found["aliases"], found["new"]) == (201, 1, ["production"], True)
    assert found["model"] == "job-red/main/0"
    assert ask("POST", "", body)[0] == 200
    served.run("job-red-2", "red")
    assert ask("POST", "", {"model": "job-red-2/main/0", "name": "pets"})[1]["version"] == 2
    path = "/pets/aliases/production"
    assert ask("PUT", path, {"version": "2", "expected": 1})[1]["moved"]
    code, problem = ask("PUT", path, {"version": "1", "expected": None})
    assert (code, "means version 2 since u moved it" in problem["title"]) == (409, True)
    assert problem["hint"]
    code, found = ask("POST", f"{path}/rollback", {})
    assert (code, found["version"], found["aliases"]) == (200, 1, ["production"])
    assert ask("POST", f"{path}/rollback", {"expected": 2})[0] == 409
    code, problem = ask("POST", f"{path}/rollback", {})
    assert (code, "no version before 1" in problem["title"]) == (422, True)
    assert ask("DELETE", "/pets/versions/1")[0] == 409
    assert ask("DELETE", "/pets/versions/2")[1]["version"] == 2
    assert served.ask("red-user", "GET", "/api/v1/models/job-red-2/main/0").status_code == 200
    shown = ask("GET", "/pets")[1]
    assert [each["kind"] for each in shown["moves"]] == ["rollback", "promote", "promote"]
    assert ask("GET", "/pets/versions/newest")[1]["lineage"]["seed"] == 0
    assert ask("PATCH", "/pets", {"description": "cats", "tags": {"a": "b"}})[1]["description"] == "cats"
    assert ask("DELETE", path)[0] == 204
    assert {m["name"]: m["aliases"] for m in ask("GET", "")[1]["models"]}["pets"] == {}


def test_other_teams_have_a_registry_of_their_own(served, ask):
    ask("POST", "", {"model": "job-red", "name": "ours"})
    assert ask("GET", "/ours", who="blue-user")[0] == 404
    assert ask("POST", "", {"model": "job-red", "name": "x"}, "blue-user")[0] == 404
    assert ask("POST", "", {"model": "job-red", "name": "x"}, "owner")[0] == 404
    assert ask("POST", "", {"model": "job-red", "name": "x"}, "admin")[0] == 404, "it is in red's or nowhere"
    assert ask("GET", "/ours?team=red", who="admin")[0] == 200
    assert ask("POST", "", {"model": "job-blue", "name": "ours"}, "blue-user")[1]["version"] == 1
    answer = served.ask("blue-user", "GET", "/api/v1/models-diff?a=ours@1&b=job-red")
    assert (answer.status_code, answer.json()["title"]) == (404, "there is no run 'job-red'")


def test_what_is_not_there_is_said_with_what_is_near(served, ask):
    ask("POST", "", {"model": "job-red", "name": "zebras", "alias": "production"})
    assert ask("GET", "/zebrra")[1]["hint"] == "Did you mean zebras?"
    assert ask("GET", "/zebras/versions/prodution")[1]["hint"] == "Did you mean production?"
    assert ask("GET", "/zebras/versions/7")[0] == 404
    for body in (
        {"model": "job-red", "name": "a@b"},
        {"model": "job-red", "name": "a", "alias": "7"},
        {"model": "job-red", "name": "a", "alias": "newest"},
        {"model": "job-red", "name": "a", "tags": {"": "x"}},
    ):
        assert ask("POST", "", body)[0] == 422, body


def test_a_run_starts_from_models_of_its_own_team_only(served, ask):
    ask("POST", "", {"model": "job-red", "name": "ferns", "alias": "production"})
    recipe = (
        "name: job\nprovider: lab\nexperiments:\n  main:\n    command: 'true'\n"
        "    data: {w: {model: ferns@production}}\n"
    )
    answer = served.ask("blue-user", "POST", "/api/v1/runs", json={"recipe": recipe, "max_usd": 1})
    assert answer.status_code == 422
    (mistake,) = answer.json()["mistakes"]
    assert (mistake["line"], mistake["key"]) == (6, "experiments.main.data.w.model")
    assert "there is no registered model 'ferns'" in mistake["message"]
    assert str(served.service.home.root) not in answer.text
