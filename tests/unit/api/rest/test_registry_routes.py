"""The model registry over REST: versions, aliases, who wins, and what other teams see of it."""

from __future__ import annotations

import re

import pytest

from trainmaster.artifacts import CheckpointSeries
from trainmaster.cli.compare import compared_lines
from trainmaster.db import tables
from trainmaster.service.driving.submissions import Submissions
from trainmaster.service.runs.run_names import owner_of
from trainmaster.spec import Recipe

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


@pytest.fixture
def begin(served):
    """Runs of red and of the owner have left a checkpoint; asks for a run that begins with one."""
    home, database = served.service.home, served.service.database
    runs = tables.run
    changes = [
        runs.update().values(store_url=home.store_url, code_path=str(home.root / "saved")),
        runs.update().where(runs.c.id == "job-red").values(submitted_by="u", labels='{"name": "mine"}'),
        runs.update().where(runs.c.id == "job-own").values(submitted_by="o"),
    ]
    database.write(lambda connection, _: [connection.execute(change) for change in changes])
    folder = home.root / "saved"
    folder.mkdir(exist_ok=True)
    (folder / "state").write_text("5")
    for run in ("job-red", "job-own"):
        series = CheckpointSeries(home.checkpoints_uri(run, "main", 0), owner_of(database.run_row(run), home))
        assert series.newest() or series.publish({"": folder}, attempt=1)

    def begin(who, run, provider="local"):
        wanted = {"recipe": beginning(run, provider), "max_usd": 1}
        return served.ask(who, "POST", "/api/v1/runs", json=wanted)

    return begin


def beginning(run, provider="local"):
    return (
        f"name: job\nprovider: {provider}\nexperiments:\n  main:\n    command: 'true'\n"
        f"    checkpoint: {{from: {run}}}\n"
    )


@pytest.mark.parametrize("named", ["latest", "job-own"])
def test_a_run_begins_with_the_checkpoint_of_another_one(served, begin, monkeypatch, named):
    monkeypatch.setattr(Submissions, "_is_shared_with", lambda *_: False)  # it is the owner's alone
    answer = begin("owner", named)
    assert answer.status_code == 201, answer.text
    run = answer.json()["run"]
    shown = served.ask("owner", "GET", f"/api/v1/runs/{run}").json()
    assert shown["experiments"]["main"]["begins_with"] == "job-own/main/0@1"
    page = served.ask("owner", "GET", f"/runs/{run}").text
    assert "Begins with checkpoint job-own/main/0@1" in re.sub(r"<[^>]+>", "", page)
    assert '<a href="/runs/job-own">job-own/main/0@1</a>' in page
    removed = served.ask("owner", "POST", "/api/v1/storage/remove-runs", json={"runs": ["job-own"]}).json()
    assert [each["outcome"] for each in removed["runs"]] == ["KEPT"], removed


@pytest.mark.parametrize(
    ("who", "run", "said"),
    [
        ("blue-user", "job-red", "there is no run 'job-red'"),
        ("blue-user", "job-blue", "job-blue left no checkpoint"),
        ("red-user", "job-red/main/3", "job-red/main/3 left no checkpoint"),
        ("red-user", "job-red@4", "there is no checkpoint job-red/main/0@4: it has 1"),
        ("red-user", "latest/main/3", "job-red/main/3 left no checkpoint"),
        ("blue-user", "latest", "there is no run `latest`: that is the last one that you started"),
        ("red-user", "mine/main/3", "job-red/main/3 left no checkpoint"),
        ("blue-user", "mine", "there is no run 'mine'"),
    ],
)
def test_a_checkpoint_that_is_not_there_or_of_another_team_is_refused(served, begin, who, run, said):
    answer = begin(who, run, "lab")
    assert answer.status_code == 422
    (mistake,) = answer.json()["mistakes"]
    assert (mistake["line"], mistake["key"]) == (6, "experiments.main.checkpoint.from")
    assert said in mistake["message"]
    assert str(served.service.home.root) not in answer.text


def test_who_fills_in_a_checkpoint_that_is_not_there_is_told_before_it_is_sent(served, begin):
    def told(run):
        recipe = beginning(run, "lab")
        return served.ask("red-user", "POST", "/new/estimate", data={"recipe": recipe}).text.strip()

    def told_again(run):
        typed, part = {"recipe": beginning(run, "lab")}, {"HX-Request": "true"}
        return served.ask("red-user", "POST", "/runs/job-red/again", data=typed, headers=part).text

    said = "there is no run &#39;job-red-6&#39;"
    assert [said in told_again(run) for run in ("job-red-6", "job-red")] == [True, False]
    where = "line 6, column 24: experiments.main.checkpoint.from"
    assert told("job-red-6").startswith(f"No estimate: {where}: {said}; did you mean job-red")
    served.run("job-red-8", "red")
    change = tables.run.update().where(tables.run.c.id == "job-red-8").values(state="RUNNING")
    served.service.database.write(lambda connection, _: connection.execute(change))
    assert told("job-red-8").endswith("its last checkpoint is still to come; wait for its end.")
    assert served.ask("red-user", "POST", "/new/estimate", data={"recipe": "name: ["}).status_code == 204


def test_another_run_begins_with_a_checkpoint_by_a_link_of_an_ended_ones_history(served, begin):
    recipe = Recipe.from_text(beginning("job-0"), directory=served.service.home.root).model_dump_json()
    change = tables.run.update().where(tables.run.c.id == "job-red").values(recipe=recipe)
    served.service.database.write(lambda connection, _: connection.execute(change))
    link = "/runs/job-red/again?experiment=main&task=0&checkpoint=1"
    assert "/runs/job-red/history#checkpoints" in served.ask("red-user", "GET", "/runs/job-red").text
    assert link.replace("&", "&amp;") in served.ask("red-user", "GET", "/runs/job-red/history").text
    shown = re.search(r"<textarea.*?</textarea>", served.ask("red-user", "GET", link).text, re.DOTALL)[0]
    assert "checkpoint: {from: job-red/main/0@1}" in shown


def test_a_run_that_is_not_over_or_has_another_store_is_refused(served, begin):
    served.run("job-red-9", "red")

    def set_row(**values):
        change = tables.run.update().where(tables.run.c.id == "job-red-9").values(**values)
        served.service.database.write(lambda connection, _: connection.execute(change))

    set_row(state="RUNNING")
    assert "job-red-9 is not over" in begin("red-user", "job-red-9", "lab").json()["mistakes"][0]["message"]
    set_row(state="DONE", store_url="file:///elsewhere")
    answer = begin("red-user", "job-red-9", "lab")
    assert "are on another store" in answer.json()["mistakes"][0]["message"]
    assert "elsewhere" not in answer.text
    set_row(store_url=served.service.home.store_url, trimmed_at=1.0)
    assert "were removed" in begin("red-user", "job-red-9", "lab").json()["mistakes"][0]["message"]


@pytest.mark.parametrize(
    ("who", "run", "said"),
    [
        ("blue-user", "job-red", "there is no run 'job-red'"),
        ("red-user", "job-red", "none of the experiments of job-red have parameters"),
        ("red-user", "latest", "none of the experiments of job-red have parameters"),
        ("red-user", "job-red/main", "the earlier tasks had no such parameter"),
    ],
)
def test_a_search_goes_on_with_one_that_its_team_sees_and_that_fits(served, begin, who, run, said):
    recipe = (
        "name: job\nprovider: lab\nexperiments:\n  main:\n    command: 'true {{x}}'\n    samples: 2\n"
        f"    parameters: {{x: {{range: 0-1}}}}\n    search: {{metric: loss, goal: min, from: {run}}}\n"
    )
    answer = served.ask(who, "POST", "/api/v1/runs", json={"recipe": recipe, "max_usd": 1})
    assert answer.status_code == 422
    assert said in answer.json()["mistakes"][0]["message"]


def test_runs_that_began_with_other_versions_say_so_beside_each_other(served):
    text = (
        "name: job\nexperiments:\n  main:\n    command: 'true'\n    checkpoint: {from: job-0}\n"
        "    data: {x: {volume: digits}, w: {model: ferns@production}, y: {volume: same}}\n"
    )
    recipe = Recipe.from_text(text, directory=served.service.home.root)
    main = recipe.experiments["main"]
    for number, run in enumerate(("job-red-21", "job-red-22"), 1):
        data = {**main.data, "w": main.data["w"].model_copy(update={"model": f"ferns@{number}"})}
        checkpoint = main.checkpoint.model_copy(update={"begins_with": f"job-0/main/0@{number}"})
        its = recipe.model_copy(
            update={"experiments": {"main": main.model_copy(update={"data": data, "checkpoint": checkpoint})}}
        )
        served.run(run, "red")
        fact = {"run_id": run, "kind": "volume", "name": "digits", "value": f"s3://b/digits@{number}"}
        changes = [
            tables.run.update().where(tables.run.c.id == run).values(recipe=its.model_dump_json()),
            tables.run_fact.insert().values(fact),
        ]
        served.service.database.write(lambda connection, _, all=changes: [*map(connection.execute, all)])
    asked = "compare?run=job-red-21&run=job-red-22"
    found = served.ask("red-read", "GET", f"/api/v1/{asked}").json()
    assert found["runs"][0]["inputs"]["main"]["data.y"] == "volume same"
    (diff,) = found["diffs"]
    assert [(each["name"], each["before"], each["after"]) for each in diff["inputs"]] == [
        ("data.x", "volume s3://b/digits@1", "volume s3://b/digits@2"),
        ("data.w", "model ferns@1", "model ferns@2"),
        ("checkpoint", "job-0/main/0@1", "job-0/main/0@2"),
    ]
    shown = compared_lines(found, [])
    assert "main has data.x volume s3://b/digits@2, not volume s3://b/digits@1" in shown
    diff["inputs"] = [{**diff["inputs"][2], "after": None}, {**diff["inputs"][2], "before": None}]
    shown = compared_lines(found, [])
    assert {
        "main has no checkpoint, not job-0/main/0@1",
        "main has checkpoint job-0/main/0@2, not none",
    } <= {*shown}
    page = served.ask("red-read", "GET", f"/{asked}").text
    assert "<td>job-0/main/0@1</td><td>job-0/main/0@2</td>" in page


def test_a_search_that_goes_on_has_a_link_to_which(served):
    recipe = Recipe.from_text(
        "name: job\nexperiments:\n  main:\n    command: 'true {{x}}'\n    samples: 1\n"
        "    parameters: {x: {range: 0-1}}\n    search: {metric: none, goal: min, from: job-0}\n",
        directory=served.service.home.root,
    )
    main = recipe.experiments["main"]
    row = tables.run.update().where(tables.run.c.id == "job-red-7")
    served.run("job-red-7", "red")
    for count, tasks in ((7, "7 tasks"), (1, "1 task")):
        search = main.search.model_copy(update={"goes_on": f"job-0/main@{count}"})
        searching = {"main": main.model_copy(update={"search": search})}
        text = recipe.model_copy(update={"experiments": searching}).model_dump_json()
        change = row.values(recipe=text)
        served.service.database.write(lambda connection, _, change=change: connection.execute(change))
        page = served.ask("red-user", "GET", "/runs/job-red-7").text
        assert f'Its search goes on from <a href="/runs/job-0">job-0/main: {tasks}</a>' in page
