"""What people do on the second day, by REST and on pages: docs/development/second_day.md has the whole table.

Each call is sent by one of team red, and again by one of team blue, who sees nothing of red's run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from html import unescape
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_home import RECIPE, Served

from trainmaster.api.rest import runs
from trainmaster.cli.status import _show_runs
from trainmaster.db import tables as t
from trainmaster.service.dry_run import dry_run
from trainmaster.service.storage.removal import RunRemoval

RUN = "job-red"
JOB = {
    "recipe": "name: x\nexperiments: {main: {command: python train.py --lr 0.5, workers: 1}}\nprovider: aws\n"
}
ZONED = {"recipe": JOB["recipe"].replace("workers: 1", "workers: 1, hardware: {region: us-east-1}")}
LOCAL = {"recipe": f"{RECIPE}provider: local\n"}
SKY = {"source": "resources: {accelerators: A100:8}\nrun: make\n", "file": "sky.yaml"}
WIDE = {"source": "service: {replicas: 1}\nnum_nodes: 2\nrun: make\n", "file": "sky.yaml"}
GONE = {"runs": [RUN], "dry_run": True}
#: Method, path below /api/v1, body, and what the answer has: of red, and of blue. A number is a status.
CALLS = [
    ("PATCH", f"/runs/{RUN}", {"labels": {"paper": "draft"}, "note": "figure 3"}, "figure 3", 404),
    ("GET", "/runs?where=state = SUCCEEDED and label:paper = draft", None, RUN, '"runs":[]'),
    ("GET", "/runs?label=paper%3Ddraft", None, RUN, '"runs":[]'),
    ("GET", "/runs?where=note ~ 'FIGURE 3'", None, RUN, '"runs":[]'),
    ("GET", "/runs?where=loss <", None, "where, column 7", "where, column 7"),
    ("GET", "/runs?state=succeeded", None, RUN, "job-blue"),
    ("GET", "/runs?state=FAILED", None, "state: there is no state 'FAILED'; what", "state: there is no"),
    ("GET", "/nosuch", None, "GET /api/v1/openapi.json has all routes", "has all routes"),
    ("PUT", "/views/red's", {"query": "where=loss+<+1"}, "red's", "red's"),
    ("GET", "/views", None, "loss < 1", "loss < 1"),
    ("DELETE", "/views/red's", None, 204, 204),
    ("GET", "/cost", None, '"by":"month"', '"runs":0'),
    ("GET", "/cost?by=label:paper", None, '"key":"draft","runs":1', '"key":null'),
    ("GET", "/cost?by=provider&since=30d", None, '"rows"', '"rows":[]'),
    ("GET", "/cost?by=user&since=month", None, '"rows"', '"rows":[]'),
    ("GET", "/cost?by=user", None, '"key":"x"', '"runs":1'),
    ("GET", "/cost?by=team", None, '"key":"red"', '"key":"blue"'),
    ("GET", "/cost?by=run&csv=true", None, f"{RUN},1,", "run,runs,usd"),
    ("GET", "/cost?by=nosuch", None, 422, 422),
    ("GET", "/budgets", None, '"monthly_usd":100', '"monthly_usd":null'),
    ("GET", "/storage", None, f'"run":"{RUN}"', '"run":"job-blue"'),
    ("POST", "/storage/remove-runs", GONE, '"outcome":"REMOVED"', 404),
    ("POST", "/storage/remove-runs", {"where": "label:paper = draft", "dry_run": True}, RUN, '"runs":[]'),
    ("DELETE", f"/runs/{RUN}?dry_run=true", None, '"outcome":"REMOVED"', 404),
    ("POST", "/storage/prune", {"kinds": ["checkpoints"], "dry_run": True}, '"checkpoints"', '"checkpoints"'),
    ("POST", "/storage/prune", {"kinds": ["code"], "dry_run": True}, 403, 403),
    ("GET", "/configuration", None, '"key":"region","value":"eu-west-1"', '"file":"config.toml"'),
    ("GET", "/recipes/schema", None, '"keep_after"', '"silence"'),
    ("POST", "/recipes/check", ZONED, '"tasks":1', '"tasks":1'),
    ("POST", "/recipes/check", LOCAL, "provider: local", 422),
    ("POST", "/recipes/check", {"recipe": ZONED["recipe"].replace("workers", "secrets: [NOPE], workers")},
     "team red has no NOPE", 422),
    ("POST", "/recipes/check", {"recipe": JOB["recipe"] + "nosuch: 1"}, "nosuch", 422),
    ("POST", "/runs/dry-run", ZONED, "python train.py --lr 0.5", "RunInstances"),
    ("POST", "/recipes/convert", SKY, "gpu: A100", "gpus: 8"),
    ("POST", "/recipes/convert", WIDE, "A replica is one machine here", 422),
    ("GET", "/wallet", None, '"wallet":null', '"wallet":null'),
]  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    found = Served(tmp_path_factory.mktemp("served"))
    file = found.service.home.root / "config" / "trainmaster" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('region = "eu-west-1"\nprovider = "aws"\n')
    found.state.environ.update({"XDG_CONFIG_HOME": str(file.parent.parent), "HOME": str(file.parent)})
    yield found
    found.service.close()


def test_each_call_answers_its_own_team(own, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    wrong = []
    for method, path, body, *answers in CALLS:
        for who, wanted in zip(("red-user", "blue-user"), answers, strict=True):
            answer = own.ask(who, method, f"/api/v1{path}", json=body)
            said = wanted == answer.status_code if isinstance(wanted, int) else wanted in answer.text
            if not said or (who == "blue-user" and RUN in answer.text.replace(f"'{RUN}'", "")):
                wrong.append((who, method, path, answer.status_code, answer.text[:400]))
    assert not wrong, "\n".join(map(str, wrong))


def test_who_may_only_look_changes_nothing(own):
    for method, path, body, *_ in CALLS:
        if method in ("PATCH", "DELETE") or path.startswith(("/storage/", "/runs/dry")):
            asked = own.ask("red-read", method, f"/api/v1{path}", json=body)
            assert asked.status_code == (403 if "views" not in path else 404), (method, path)


def test_a_first_recipe_is_made_where_the_code_is_ones_own(own):
    script = (
        b"import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("train.py")
        member.size = len(script + b"p.parse_args()\n")
        archive.addfile(member, io.BytesIO(script + b"p.parse_args()\n"))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    own.ask("red-user", "PUT", f"/api/v1/code/{digest}", content=packed.getvalue())
    refused = own.ask("red-user", "POST", "/api/v1/recipes/init", json={"code": digest})
    assert (refused.status_code, refused.json()["hint"]) == (403, "`trainmaster init` does, where it is.")
    options = {
        "main": "train.py",
        "digest": digest,
        "recipe": "experiments: {main: {command: python train.py}}\n",
    }
    assert "--lr 0.1" in words(own.ask("red-user", "POST", "/new/recipe", data=options))


#: A page, and what is on it: of red, and of blue.
PAGES = [
    (f"/runs/{RUN}", "figure 3", 404),
    ("/runs?where=state = SUCCEEDED and label:paper = draft", RUN, "No runs like that"),
    ("/runs?where=loss <", "where, column 7", "where, column 7"),
    ("/cost?by=label:paper", "draft", "(none)"),
    ("/cost?by=run", RUN, "job-blue"),
    ("/team", "$100.00 left of $100.00", "Budget"),
    ("/storage", "See what is unused, and delete that", "See what is unused, and delete that"),
    ("/storage/prune", "Unused data", "All data are in use: there is nothing to delete"),
    (f"/runs/{RUN}/again", "If you have mended the code, send it with this recipe", 404),
    (f"/remove?run={RUN}", "Delete it for good", 404),
    ("/new", "this server takes provider: aws, region: eu-west-1", "Show what it would do"),
]


def words(answer):
    """What is read on a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", answer.text)))


def test_each_page_shows_its_own_team(own):
    described = {"labels": {"paper": "draft"}, "note": "figure 3"}
    own.ask("red-user", "PATCH", f"/api/v1/runs/{RUN}", json=described)
    wrong = []
    for path, *answers in PAGES:
        for who, wanted in zip(("red-user", "blue-user"), answers, strict=True):
            answer = own.ask(who, "GET", path)
            said = wanted == answer.status_code if isinstance(wanted, int) else wanted in words(answer)
            if not said or (who == "blue-user" and RUN in words(answer).replace(f"'{RUN}'", "")):
                wrong.append((who, path, wanted, answer.status_code, words(answer)[-400:]))
    assert not wrong, "\n".join(map(str, wrong))
    assert "/storage/prune" not in own.ask("red-read", "GET", "/storage").text
    for path in ("/storage/prune", "/new/dry-run"):
        assert own.ask("red-read", "POST", path).status_code == 403


def test_a_page_shows_what_a_run_would_do(own):
    sent = own.ask("red-user", "POST", "/new/dry-run", data={**ZONED, "most_workers": "7"})
    back = dict(re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', sent.text, re.DOTALL))
    back = {name: unescape(value) for name, value in back.items()}
    page = own.ask("red-user", "POST", "/new/recipe", data=back)
    assert 'name="most_workers" value="7"' in page.text
    assert ZONED["recipe"].replace("'", '"') in unescape(page.text).replace("'", '"')
    shown = words(sent)
    assert "RunInstances" in shown
    assert "python train.py --lr 0.5" in shown
    assert str(own.service.home.root) not in shown
    assert "UserData" not in shown
    wrong = own.ask("red-user", "POST", "/new/dry-run", data=LOCAL)
    assert (wrong.status_code, "provider: local" in words(wrong)) == (422, True)


def test_what_a_run_would_do_is_told_by_what_its_own_team_knows(own, monkeypatch):
    teams = []

    def plan(service, recipe, environ):
        teams.append(service.team)
        return dry_run(service, recipe, environ)

    monkeypatch.setattr(runs, "dry_run_of", plan)
    for who in ("red-user", "blue-user", "owner"):
        own.ask(who, "POST", "/api/v1/runs/dry-run", json=ZONED)
        own.ask(who, "POST", "/new/dry-run", data=ZONED)
    assert teams == ["red", "red", "blue", "blue", None, None]


def away(removal, place, unused_s, *, is_trial):
    raise OSError("the disk is away")


def test_what_nothing_needs_goes_from_the_page(own, monkeypatch):
    unneeded = own.service.home.snapshots / ("0" * 64)
    unneeded.mkdir(parents=True)
    (unneeded / "train.py").write_text("pass\n")
    os.utime(unneeded, (0, 0))
    confirmed = '<input type="hidden" name="kind" value="code">'
    assert confirmed not in own.ask("red-user", "GET", "/storage/prune").text
    assert own.ask("red-user", "POST", "/storage/prune", data={"kind": ["code"]}).status_code == 403
    own.ask("red-user", "POST", "/storage/prune", data={"kind": ["runs", "checkpoints", "models"]})
    assert own.ask("admin", "POST", "/storage/prune").status_code == 422, "nothing was confirmed"
    assert confirmed in own.ask("admin", "GET", "/storage/prune").text
    own.ask("admin", "POST", "/storage/prune", data={"kind": ["data"]})
    assert unneeded.is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(RunRemoval, "free", away)
        asked = own.ask("admin", "GET", "/storage/prune").text
        assert ("the disk is away" in asked, "Delete it for good" in asked) == (True, False)
        assert "the disk is away" in own.ask("admin", "POST", "/storage/prune", data={"kind": ["code"]}).text
    sent = own.ask("admin", "POST", "/storage/prune", data={"kind": ["code"]})
    assert (sent.status_code, sent.headers["location"]) == (303, "/storage")
    assert not unneeded.exists()
    assert (own.service.home.root / "runs" / RUN).is_dir()
    done = json.dumps(own.ask("admin", "GET", "/api/v1/audit").json())
    assert "POST /storage/prune" in done


def test_what_a_run_took_is_without_its_wait_everywhere(tmp_path):
    own = Served(tmp_path)
    own.run("job-longer", "red")
    for run, worked_s, waited_s in ((RUN, 3600.0, 90000.0), ("job-longer", 7200.0, 9.0)):
        took = t.run.update().where(t.run.c.id == run)
        with own.service.database.engine.begin() as connection:
            connection.execute(took.values(earlier_s=worked_s + waited_s, queued_s=waited_s))
    both = f"?run={RUN}&run=job-longer"
    for path in (f"/runs/{RUN}", "/", "/runs", f"/compare{both}", f"/again{both}"):
        shown = own.ask("red-user", "GET", path).text
        assert "1 h" in shown, path
        assert "1 d 2 h" not in shown, path
    rows = own.ask("red-user", "GET", "/runs?sort=-took").text
    assert rows.index('data-run="job-longer"') < rows.index(f'data-run="{RUN}"')
    listed = own.ask("red-user", "GET", "/api/v1/runs").json()["runs"]
    assert {each["run"]: each["queued_s"] for each in listed} == {RUN: 90000.0, "job-longer": 9.0}
    own.service.close()


def test_a_run_that_was_just_resumed_is_in_no_phase(tmp_path):
    own = Served(tmp_path)
    database = own.service.database
    with database.engine.begin() as connection:
        connection.execute(
            t.run.update().where(t.run.c.id == RUN).values(reason="USER_ERROR", earlier_s=60.0)
        )
        connection.execute(t.experiment.update().values(reason="USER_ERROR"))
    course = {"now": "steps", "since": 5.0, "took": {"setup": 5.0}, "expected": {"steps": [1.0, 2.0, 3.0]}}
    ends = {"time_s": {"p5": 1.0, "p50": 2.0, "p95": 3.0}}
    database.put_forecast(RUN, json.dumps({"courses": {"main": course}, "ends": ends}))
    assert "phases" in own.ask("red-user", "GET", f"/api/v1/runs/{RUN}").json()
    database.requeue(database.acquire(RUN, database.clock_s()), database.clock_s(), lambda _: None)
    resumed = own.ask("red-user", "GET", f"/api/v1/runs/{RUN}").json()
    assert (resumed["state"], resumed.keys() & {"phases", "late", "ends"}) == ("WAITING", set())
    own.service.close()


def test_a_list_has_what_its_condition_names(tmp_path):
    own = Served(tmp_path)
    own.run("job-better", "red")
    with own.service.database.engine.begin() as connection:
        for run, loss in ((RUN, 0.4), ("job-better", 0.1), ("job-blue", 0.2)):
            mine = t.experiment.c.run_id == run
            of_run = t.task.c.experiment_id.in_(sa.select(t.experiment.c.id).where(mine))
            told = {"metrics": json.dumps({"loss": loss}), "parameters": json.dumps({"lr": 0.5})}
            connection.execute(t.task.update().where(of_run).values(**told))

    def values(where):
        listed = own.ask("red-user", "GET", f"/api/v1/runs?where={where}").json()["runs"]
        return {each["run"]: each.get("values") for each in listed}

    both = {RUN: {"metric:loss": 0.4, "param:lr": 0.5}, "job-better": {"metric:loss": 0.1, "param:lr": 0.5}}
    assert values("loss < 1 and lr > 0") == both
    assert values("metric:loss < 0.3") == {"job-better": {"metric:loss": 0.1}}
    assert values("state = DONE") == values("") == {RUN: None, "job-better": None}
    own.service.close()


def test_a_list_of_runs_of_several_people_says_whose_each_is(capsys):
    line = {"state": "DONE", "reason": "SUCCEEDED", "created_at": 0.0, "seconds": 1.0, "cost_usd": 0.0,
            "driven": False, "driver": None}  # fmt: skip

    def shown(*owners):
        runs = [{**line, "run": f"job-{at}", "owner": owner} for at, owner in enumerate(owners)]
        _show_runs(SimpleNamespace(listed=lambda *_, **__: {"runs": runs, "older": 0}), None, "state = DONE")
        return [each.split() for each in capsys.readouterr().out.splitlines()]

    assert [row[-1] for row in shown("ann", "ben")] == ["by", "ann", "ben"]
    assert next(row[-1] for row in shown("ann", "ann")) == "age"


def test_the_best_of_all_runs_that_a_condition_finds_come_first(tmp_path):
    """Only the newest were listed, and these were sorted: the best of all was not among them."""
    own = Served(tmp_path)
    losses = {f"job-{number}": (number * 7 % 10) / 10 for number in range(10)}
    for run in losses:
        own.run(run, "red")
    with own.service.database.engine.begin() as connection:
        for number, (run, loss) in enumerate(losses.items()):
            connection.execute(t.run.update().where(t.run.c.id == run).values(created_at=float(number)))
            mine = t.experiment.c.run_id == run
            of_run = t.task.c.experiment_id.in_(sa.select(t.experiment.c.id).where(mine))
            told = json.dumps({"loss": loss, "accuracy": 1 - loss})
            connection.execute(t.task.update().where(of_run).values(metrics=told))
    best = sorted(losses, key=losses.get)
    for where in ("loss < 0.9", "accuracy > 0.05"):
        listed = own.service.runs(3, where=where, sort="best")["runs"]
        assert [each["run"] for each in listed] == best[:3]

    def pages(query):
        cursor, found = "", []
        while cursor is not None:
            asked = f"/api/v1/runs?limit=3&{query}{cursor and '&cursor=' + cursor}"
            page = own.ask("red-user", "GET", asked).json()
            found.append([each["run"] for each in page["runs"]])
            cursor = page["next"]
        return found

    assert pages("where=loss < 0.9&sort=best") == [best[:3], best[3:6], best[6:9]]
    assert pages("where=loss&sort=-metric:loss")[0] == best[:-4:-1]
    assert own.ask("red-user", "GET", "/api/v1/runs?sort=nosuch").status_code == 422
    for no_place in ("job-1", "9" * 20, "9" * 5000):
        assert own.ask("red-user", "GET", f"/api/v1/runs?sort=cost&cursor={no_place}").status_code == 422
    own.service.close()
