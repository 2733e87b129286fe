"""The pages over ASGI: what they show of runs, small, escaped, and without scripts or styles of their own."""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import re
import sqlite3
import warnings
from types import SimpleNamespace

import pytest

from trainmaster.artifacts import CheckpointSeries
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ClosedAttempt, Note, RunChange, Submission, TaskChange, tables
from trainmaster.providers.base import BakedImage
from trainmaster.providers.examining import Finding
from trainmaster.service import Service
from trainmaster.service import doctor as doctor_module
from trainmaster.service import images as images_module
from trainmaster.service.runs.run_details import RunDetails
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.users.caller import caller
from trainmaster.service.users.saved_views import SavedViews
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import ADAPTED, OUTPUT_LOST

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.web.pages import add_pages

RECIPE = """\
name: digits
budget: {{total: $9}}
experiments:
  prepare: {{command: 'true'}}
  tune:
    after: prepare
    parameters: {{lr: {rates}, kind: ["<i>", "<b>"]}}
    search: {{metric: loss, goal: min}}
    samples: 6
    until: loss <= 0.1
    checkpoint: {{every: 1m}}
    data: {{images: {{volume: cifar10}}}}
    command: 'echo {{{{lr}}}}'
  report: {{after: [tune, prepare], command: 'true'}}
"""
#: Of a provider, that say nothing.
CALLS = ("check_settings", "check_up", "close")
LINES = "".join(f"step {n} <script>alert(1)</script>\n" for n in range(20))


class Site:
    """A server in this process with two runs of one search each."""

    def __init__(self, root):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.state = make_state(self.service, {"PATH": os.environ["PATH"]})
        self.app = make_app(self.state)
        add_pages(self.app)
        token = self.state.access.create_token("ann", ["read", "run", "manage"])["token"]
        headers = {"authorization": f"Bearer {token}"}
        self.browser = TestClient(
            self.app, raise_server_exceptions=False, follow_redirects=False, headers=headers
        )
        self.run("digits-1", "[0.1, 0.2, 0.4]", 1.0)
        self.run("digits-2", "[0.1, 0.2, 0.8]", 2.0)

    def run(self, run, rates, at, ends=EndReason.SUCCEEDED):
        recipe = Recipe.from_text(RECIPE.format(rates=rates), directory=self.service.home.root)
        code = self.service.home.root / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text("print(1)\n")
        experiments = [(name, 6 if name == "tune" else 1) for name in recipe.experiments]
        new = AcceptedRun(
            run, "digits", recipe.model_dump_json(), "r.yaml", "local", str(code),
            self.service.home.store_url, experiments,
            home=str(self.service.home.root),
            home_id=self.service.home.identity(),
            submission=Submission("ann", None),
        )  # fmt: skip
        lease = self.service.database.create_run(new, at)
        changes = []
        for number in range(6):
            rate = json.loads(rates)[number % 3]
            place = self.service.home.attempt(run, "tune", number, 1)
            place.make_directories(["worker-0"])
            place.log("worker-0").write_text(LINES)
            rows = [{"step": step, "loss": at + rate / step} for step in (1, 2, 4)]
            place.metrics("worker-0").write_text("".join(json.dumps(row) + "\n" for row in rows))
            samples = [sample(at, second) for second in (1.0, 2.0, 4.0)]
            (place.directory / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
            fields = {
                "parameters": {"lr": rate, "kind": "<i>"},
                "metrics": {"loss": at + rate / 4},
            }
            closes = ClosedAttempt(1, ends, "", at, at + 4, None, "[]")
            changes += [
                TaskChange(
                    "tune", number, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=fields
                ),
                TaskChange("tune", number, 1, State.RUNNING, State.STOPPING, ends),
                TaskChange("tune", number, 1, State.STOPPING, State.DONE, ends, closes=closes),
            ]
        (place.checkpoint / "state").write_text("1")
        series = CheckpointSeries(self.service.home.checkpoints_uri(run, "tune", 0))
        series.publish({"": place.checkpoint}, attempt=1)
        self.service.database.commit(
            lease, [*changes, RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], at + 9
        )
        self.service.database.release(lease, at + 10)

    def metrics(self, run):
        return self.browser.get(f"/api/v1/runs/{run}/metrics?points=30").json()["metrics"]

    def page(self, path, http=200):
        answer = self.browser.get(path)
        assert answer.status_code == http, answer.text
        return answer.text


def sample(at, second):
    used = {"cpu_seconds": 2 * second, "rss_bytes": 5e6, "peak_rss_bytes": 5e6, "bytes_sent": 100 * second}
    return {"time": at + second, "member": "worker-0", "seconds": second, **used}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    found = Site(tmp_path_factory.mktemp("site"))
    yield found
    found.service.close()


PAGES = (
    "/runs",
    "/runs?owner=ann&since=1h",
    "/runs/digits-1",
    "/runs/digits-1/tasks?by=-loss",
    "/runs/digits-1/logs",
    "/runs/digits-1/logs?text=script&experiment=tune&task=0&attempt=1",
    "/runs/digits-1/machines",
    "/runs/digits-1/history",
    "/runs/digits-1/sweeps",
    "/runs/digits-1/again",
    "/compare?run=digits-1&run=digits-2",
    "/again?run=digits-1&run=digits-2",
    "/remove?run=digits-1&run=digits-2",
    "/models",
    "/cost?by=run&where=cost+%3C+%245",
    "/new",
    "/examples",
    "/clusters",
    "/images",
    "/offers",
    "/recommend",
    "/team",
)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_small_and_has_no_script_or_style_of_its_own(site, path):
    text = site.page(path)
    assert len(text) < 60_000
    assert not re.search(r"<script(?! src=)|<style| style=|\son\w+=|javascript:|<i>", text)
    for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
        assert site.browser.get(name).status_code == 200, name


def test_images_are_seen_and_removed_once_a_person_has_confirmed(site, monkeypatch):
    kept = [
        BakedImage("ami-1", "eu-1", "r-1", ("a",), is_ready=True, size_bytes=8 * 10**9, usd_per_month=0.4)
    ]
    baker = SimpleNamespace(
        images=lambda: list(kept), remove_image=lambda _: kept.pop(), **dict.fromkeys(CALLS, lambda: None)
    )
    baker.bake = print
    monkeypatch.setattr(images_module, "get_provider", lambda name, place: baker)
    monkeypatch.setattr(images_module, "capabilities_of", lambda name: SimpleNamespace(bakes=name == "lab"))
    assert 'href="/images"' in site.page("/clusters")
    page = site.page("/images")
    for text in ("ami-1", "lab eu-1", "/runs/r-1", "8.0 GB", "$0.40", "ready", "<summary>Remove</summary>"):
        assert text in page, text
    data = {"image": "ami-1", "provider": "lab"}
    assert site.browser.post("/images/remove", data=data).headers["location"] == "/images"
    assert kept == []
    assert "There are none" in site.page("/images")
    assert site.browser.post("/images/remove", data=data).status_code == 404


def test_places_are_looked_at_by_admins(site, monkeypatch):
    seen = [Finding("quota", "namespace <a>: 4 of 4 pods are used", False, "Give back what is there.")]
    provider = SimpleNamespace(examine=lambda builds: seen, **dict.fromkeys(CALLS, lambda: None))
    monkeypatch.setattr(doctor_module, "get_provider", lambda name, place: provider)
    assert site.browser.get("/places").status_code == 403
    assert "/places" not in site.page("/clusters")
    token = site.state.access.create_token("chief", ["read", "run", "admin"])["token"]
    headers = {"authorization": f"Bearer {token}"}
    assert 'href="/places"' in site.browser.get("/clusters", headers=headers).text
    assert "settings for none of them yet" in site.browser.get("/places", headers=headers).text
    (site.service.home.root / "slurm.yaml").write_text("")
    form = site.browser.get("/places", headers=headers).text
    assert 'value="slurm" checked' in form
    assert 'value="kubernetes">' in form
    page = site.browser.get("/places?place=kubernetes", headers=headers).text
    for text in ("kubernetes: quota", "wrong", "namespace &lt;a&gt;", "Give back what is there."):
        assert text in page, text
    assert 'value="kubernetes" checked' in page
    assert site.browser.get("/places?place=nowhere", headers=headers).status_code == 422
    (site.service.home.root / "slurm.yaml").unlink()


def test_every_page_is_the_policy_s(site):
    policy = site.browser.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy


def test_pages_come_compressed_and_rest_as_it_is(site):
    paths = ("/runs", "/api/v1/runs")
    coded = {path: site.browser.get(path).headers.get("content-encoding") for path in paths}
    assert coded == {"/runs": "gzip", "/api/v1/runs": None}
    curves = site.browser.get("/api/v1/runs/digits-1/metrics")
    assert curves.headers.get("content-encoding") == "gzip", "they are most of what the page of a run loads"


def test_the_list_has_what_is_asked_for(site):
    assert "digits-1" in site.page("/runs?owner=ann")
    for nothing in ("owner=bob", "since=1s", "state=RUNNING"):
        assert "No runs like that" in site.page(f"/runs?{nothing}")
    assert site.browser.get("/runs?since=soon").status_code == 422
    assert site.browser.get("/runs?team=red").status_code == 404


def test_labels_and_conditions_are_there_to_look_for_runs(site):
    written = {"labels": 'project=a "b\n\nowner=<i>', "note": "x\r\n<b>"}
    assert site.browser.post("/runs/digits-1/describe", data=written).status_code == 303
    shown = site.page("/runs/digits-1")
    assert "owner=&lt;i&gt;" in shown
    assert "x\n&lt;b&gt;" in shown
    link = re.search(r'href="(/runs\?where=[^"]+)">project=', shown)[1]
    found = site.page(link.replace("&#34;", '"').replace("&amp;", "&"))
    assert ("digits-1" in found, "digits-2" in found) == (True, False)
    assert "digits-2" in site.page("/runs?where=loss+%3E+2.04")
    wrong = site.page("/runs?where=loss+%3C")
    assert "where, column 7" in wrong
    assert 'value="loss &lt;"' in wrong
    marked = {"run": ["digits-1"], "label": "paper=2"}
    assert site.browser.post("/runs/label", data=marked).headers["location"] == "/runs"
    assert "paper=2" in site.page("/runs")
    site.browser.post("/runs/digits-1/describe", data={})
    assert "labels" not in site.service.brief("digits-1")


def test_home_has_what_succeeded_last(site):
    assert re.search(r'id="succeeded">.*href="/runs/digits-1"', site.page("/"), re.DOTALL)


def test_a_part_of_the_list_is_its_rows(site):
    rows = site.browser.get("/runs", headers={"hx-request": "true"}).text
    assert rows.count("<tr data-run=") == 2
    assert "<html" not in rows


def test_a_run_shows_its_graph_cap_and_best(site):
    text = site.page("/runs/digits-1")
    assert text.count('class="node s-') == 3
    assert 'class="here" aria-hidden="true">✓ digits-1</span>' in text
    assert 'data-here="✓ digits-1"' in text
    assert text.count('class="edge"') == 3
    assert "of $9.00" in text
    assert "1.025 (lr=0.1, kind=&lt;i&gt;)" in text


def test_what_waits_is_said_to_wait_and_what_is_no_number_is_said(tmp_path):
    site = Site(tmp_path)
    metrics = site.service.home.attempt("digits-1", "tune", 0, 1).metrics("worker-0")
    rows = [
        {"step": step, "loss": 1 / step if step < 41 else math.nan, "x/lr": step} for step in range(1, 61)
    ]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    waits = "UPDATE run SET state = 'RUNNING', reason = NULL, queued_at = 5, queued_for = ? WHERE id = ?"
    with contextlib.closing(sqlite3.connect(tmp_path / "trainmaster.db")) as database, database:
        database.execute(waits, (json.dumps({"waits_for": "2 cores: <a> has 2 of 2"}), "digits-2"))
        database.execute("UPDATE experiment SET state = 'RUNNING', reason = NULL WHERE run_id = 'digits-2'")
        database.execute("UPDATE task SET metrics = '{\"loss\":null}' WHERE id = 1")
    listed = site.page("/runs")
    assert "for 2 cores: &lt;a&gt; has 2 of 2" in listed
    assert listed.count('"state s-wait"') == 1
    assert listed.count("loss is NaN") == 1
    assert "digits-2" in site.page("/runs?state=WAITING")
    assert "No runs like that" in site.page("/runs?state=RUNNING")
    waiting = site.page("/runs/digits-2")
    assert 's-run">' not in waiting
    with contextlib.closing(sqlite3.connect(tmp_path / "trainmaster.db")) as database, database:
        mine = "SELECT id FROM experiment WHERE run_id = 'digits-2'"
        own = '{"train_loss":0.7,"val_loss":0.5}'
        database.execute(f"UPDATE task SET metrics = ? WHERE experiment_id IN ({mine})", [own])
        database.execute("UPDATE run SET submitted_by = NULL WHERE id = 'digits-2'")
    site.run("digits-3", "[0.1, 0.2, 0.4]", 3.0)
    listed = site.page("/runs")
    assert '<td class="v n" data-label=""><span class="dim">val_loss</span> 0.5</td>' in listed
    assert "command line" in listed
    assert "<b>waits</b> for 2 cores" in waiting
    assert "loss is NaN" in site.page("/runs/digits-1")
    curves = {curve["key"]: curve for curve in site.metrics("digits-1") if curve["task"] == 0}
    assert (curves["loss"]["not_finite_since"], curves["loss"]["has_goal"]) == (41, True)
    assert (curves["loss"]["last"], curves["loss"]["best"]) == (None, 1 / 40)
    lr = curves["x/lr"]
    assert (lr["has_goal"], lr["least"], lr["greatest"], lr["not_finite_since"]) == (False, 1, 60, None)
    link = '<a href="/runs/digits-1">'
    assert link in site.page("/cost?by=run")
    with contextlib.closing(sqlite3.connect(tmp_path / "trainmaster.db")) as database, database:
        database.execute("UPDATE run SET removed_at = 9 WHERE id = 'digits-1'")
    gone = site.page("/cost?by=run")
    assert ("digits-1" in gone, link in gone) == (True, False), "it was removed: there is no page of it"
    site.service.close()


def test_times_say_what_they_are_to_the_browser_and_events_are_exact(site):
    history = site.page("/runs/digits-1/history")
    assert '<time datetime="1970-01-01T00:00:10Z">Thu, Jan 1, 1970, 00:00:10<span' in history
    assert '<time datetime="1970-01-01T00:00:01Z">Thu, Jan 1, 1970, 00:00<span' in site.page("/runs")
    assert "SUCCEEDED" not in history[history.index('<ol class="events"') :]
    assert "/page.js" in history


def test_tasks_that_were_pruned_are_told_and_their_end_is_told_once(tmp_path):
    site = Site(tmp_path)
    site.run("digits-3", "[0.1, 0.2, 0.4]", 3.0, EndReason.PRUNED)
    with contextlib.closing(sqlite3.connect(tmp_path / "trainmaster.db")) as database, database:
        database.execute("UPDATE run SET submitted_by = NULL WHERE id = 'digits-3'")
    text = site.page("/runs/digits-3")
    assert "0 of 6 succeeded, 6 pruned" in text
    assert "· 6/6<" in text, "what was pruned is as good as done"
    assert "at step 9" not in text
    with contextlib.closing(sqlite3.connect(tmp_path / "trainmaster.db")) as database, database:
        words = "loss 0.5 at step 9 is number 2 of 5, only the best one goes on"
        database.execute("UPDATE task SET message = ?, metrics = '{\"step\":9}'", [words])
    assert site.page("/runs/digits-3/tasks").count("at step 9") == 2 * 6, "in the row, and where one points"
    assert "Only the server that" not in text
    assert "by ann" not in text, "it was begun by the command line of this home"
    events = re.findall(r"</time> (.*?)</li>", site.page("/runs/digits-3/history"))
    told = [event.split() for event in events if event.startswith("tune/0 ")]
    assert told == [["tune/0", "pruned"], ["tune/0", "stopping", "pruned"], ["tune/0", "running"]]
    with contextlib.closing(sqlite3.connect(tmp_path / "trainmaster.db")) as database, database:
        recipe = json.loads(database.execute("SELECT recipe FROM run WHERE id = 'digits-3'").fetchone()[0])
        recipe["experiments"] = {name: each | {"after": []} for name, each in recipe["experiments"].items()}
        database.execute("UPDATE run SET recipe = ? WHERE id = 'digits-3'", [json.dumps(recipe)])
    for task in range(6):
        site.service.home.attempt("digits-3", "tune", task, 1).metrics("worker-0").unlink()
    text = site.page("/runs/digits-3")
    assert 'class="node' not in text, "what waits for nothing is a table, and no column of boxes beside it"
    assert "It has reported no metrics." in text
    site.service.close()


def test_logs_are_searched_for_a_text_and_not_a_pattern(site):
    found = site.page("/runs/digits-1/logs?text=STEP 7 &experiment=tune&task=1")
    assert found.count("step 7") == 1
    assert "No line has that" in site.page("/runs/digits-1/logs?text=step .&task=0&experiment=tune")
    assert "has no task 99" in site.page("/runs/digits-1/logs?text=x&task=99&experiment=tune")
    assert 'role="alert"' in site.page("/runs/digits-1/logs?text=x&task=two")


def test_what_was_used_is_told_as_rates(site):
    found = site.browser.get("/api/v1/runs/digits-1/usage").json()
    assert len(found["members"]) == 6
    assert found["members"][0]["cpu_cores"] == [2.0, 2.0, 2.0]
    assert found["members"][0]["sent_bytes_per_s"] == [100.0, 100.0, 100.0]
    assert found["machine"]["times"] == []


def test_history_has_attempts_and_checkpoints(site):
    text = site.page("/runs/digits-1/history")
    assert "tune/5, 1" in text
    (found,) = site.browser.get("/api/v1/runs/digits-1/checkpoints").json()["checkpoints"]
    assert (found["experiment"], found["task"], found["checkpoint"]) == ("tune", 0, 1)
    assert len(site.browser.get("/api/v1/runs/digits-1/attempts?limit=4").json()["attempts"]) == 4


def test_a_search_names_its_best_trials_first(site):
    (found,) = site.browser.get("/api/v1/runs/digits-1/searches").json()["searches"]
    assert found["best"] == [0, 3, 1, 4, 2, 5]
    assert found["importance"]["lr"] > 0.9
    assert "94" in site.page("/runs/digits-1/sweeps") or "100 %" in site.page("/runs/digits-1/sweeps")


def test_runs_are_compared_by_their_best_values(site):
    found = site.browser.get("/api/v1/compare?run=digits-1&run=digits-2").json()
    assert found["metrics"] == {"loss": "min"}
    assert [each["best"]["loss"]["value"] for each in found["runs"]] == [1.025, 2.025]
    (diff,) = found["diffs"]
    assert [line[0] for line in diff["lines"] if "lr:" in line] == ["-", "+"]
    assert site.browser.get("/api/v1/compare?run=digits-1&run=nobody").status_code == 404
    assert site.browser.get("/compare").status_code == 422


def test_changes_are_shown_before_a_run_is_begun_again(site):
    page = {"sec-fetch-site": "same-origin"}
    changed = RECIPE.format(rates="[0.3]").replace("\n", "\r\n")
    answer = site.browser.post("/runs/digits-1/again", data={"recipe": changed}, headers=page)
    assert answer.text.count("<ins>+") == 2
    assert answer.text.count("<del>-") == 2
    code = site.state.submissions.code_of(caller("ann", None, ["read", "run"]), "digits-1")
    assert (CodeUploads(site.service.home, None).find(code) / "train.py").is_file()
    with pytest.raises(NotFoundError):
        site.state.submissions.code_of(caller("bob", "red", ["read", "run"]), "digits-1")
    wrong = {"recipe": "name: x\nexperimentz: 1\n", "act": "run"}
    answer = site.browser.post("/runs/digits-1/again", data=wrong, headers=page)
    assert (answer.status_code, "did you mean" in answer.text) == (422, True)


def test_marked_runs_are_run_again_or_deleted_once_a_person_has_confirmed(tmp_path):
    own = Site(tmp_path)
    assert own.browser.get("/again?run=digits-1").headers["location"] == "/runs/digits-1/again"
    both = ["digits-1", "digits-2"]
    asked = own.page("/again?run=digits-1&run=digits-2")
    key = re.search(r'name="key" value="(\w+)"', asked)[1]
    form = {"run": both, "key": key}
    for _ in range(2):  # sent twice it is one run of each
        assert own.browser.post("/again", data=form).headers["location"] == "/runs"
        assert len(own.browser.get("/api/v1/runs").json()["runs"]) == 4
    for amount in ("much", "nan", "-5"):
        answer = own.browser.post("/again", data={**form, "max_usd": amount})
        assert (answer.status_code, answer.text.count("is no amount of US dollars")) == (422, 2)
    assert "Delete 2 for good" in own.page("/remove?run=digits-1&run=digits-2")
    assert own.browser.post("/remove", data={"run": both}).headers["location"] == "/runs"
    assert own.browser.get("/runs/digits-1").status_code == 404
    left = own.browser.get("/runs?state=WAITING").text + own.page("/again?run=digits-1&run=digits-2")
    assert "Removed meanwhile, and not run again: digits-1, digits-2." in left
    own.service.close()


def test_a_view_is_a_name_for_filters_columns_and_order_and_of_one_user(site):
    whole = "state=SUCCEEDED&where=loss+%3C+9&sort=-cost&column=metric%3Aloss&column=param%3Alr"
    form = {"view": "good & cheap", "query": f"{whole}&page=3&made=up"}
    assert site.browser.post("/views", data=form).headers["location"] == f"/runs?{whole}"
    kept = site.browser.get("/api/v1/views").json()["views"]
    assert [(each["name"], each["query"]) for each in kept] == [("good & cheap", whole)]
    page = site.page(f"/runs?{whole}")
    assert f'href="/runs?{html.escape(whole)}" aria-current="page">good &amp; cheap</a>' in page
    site.state.accounts.create_user("bob", is_admin=True)
    other = site.state.access.create_token("bobs", ["read", "admin"], account="bob")["token"]
    headers = {"authorization": f"Bearer {other}"}
    assert site.browser.get("/api/v1/views", headers=headers).json() == {"views": []}
    gone = {"gone": "good & cheap", "query": whole}
    assert site.browser.post("/views/remove", data=gone, headers=headers).status_code == 404
    assert site.browser.delete("/api/v1/views/good%20%26%20cheap", headers=headers).status_code == 404
    put = site.browser.put("/api/v1/views/good%20%26%20cheap", json={"query": "sort=cost"})
    assert put.json() == {"name": "good & cheap", "query": "sort=cost"}
    assert site.browser.put("/api/v1/views/%0A", json={"query": ""}).status_code == 422
    assert site.browser.post("/views/remove", data=gone).headers["location"] == f"/runs?{whole}"
    assert site.browser.get("/api/v1/views").json() == {"views": []}


def test_there_are_at_most_fifty_views_of_one(site):
    own = SavedViews(site.service.database, caller("eve", None, ["read"]))
    for number in range(50):
        own.put(f"v{number}", "")
    with pytest.raises(UsageError, match="50 views already"):
        own.put("more", "")
    own.put("v7", "sort=cost")
    for each in own.listed():
        own.remove(each["name"])


def test_offers_are_filtered_and_come_a_page_at_a_time(site):
    text = site.page("/offers?provider=aws&cpus=4&sort=price")
    assert text.count("<tr>") == 26
    assert re.search(r"As of\">\d{4}-\d\d-\d\d<", text)
    decimals = {len(each.partition(".")[2]) for each in re.findall(r'Per hour" class="n">\$([\d.]+)', text)}
    assert (len(decimals), "GiB</th>" in text) == (1, True), "one number of decimals in a column"
    assert "number=2" in text
    assert "old</span>" in site.page("/offers?provider=gcp&spot=yes"), "of 2020"
    assert 'As of">2020' not in site.page("/offers"), "what is cheap as it is old comes last"
    assert site.page("/offers?provider=aws&cpus=4&sort=price&number=2") != text
    for wish in ("cpus=many", "memory_gb=inf"):
        assert "are numbers" in site.page(f"/offers?{wish}", 422)


def test_a_new_run_begins_from_the_last_one(site):
    (last,) = re.findall(r'href="(/new\?again=[^"]+)"', site.page("/new"))
    text = site.page(last)
    assert "name: digits" in text
    assert "Begin from" not in text


def test_examples_of_the_project_are_ready_to_run(site):
    text = site.page("/examples")
    assert "handwritten digits" in text
    assert 'action="/examples/digits"' in text
    answer = site.browser.post("/examples/nothing", headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 404


def test_a_model_says_what_it_was_made_of(site):
    details = RunDetails(site.service, "digits-1")
    found = details.lineage("tune", 3)
    assert (found["seed"], found["attempt"], found["code"]) == (0, 1, "code")
    assert found["data"] == [{"name": "images", "kind": "volume", "source": "cifar10"}]


def test_a_run_of_a_home_that_cannot_be_read_from_here_has_its_tasks(site):
    site.run("digits-away", "[0.1, 0.2, 0.4]", 4.0)
    row = tables.run.update().where(tables.run.c.id == "digits-away").values(home="/gone", home_id="other")
    site.service.database.write(lambda connection, _: connection.execute(row))
    assert "tune/5" in site.page("/runs/digits-away/tasks")


def test_what_until_ended_is_told_by_rest_and_page(site):
    site.run("digits-u", "[0.1, 0.2, 0.4]", 3.0, EndReason.UNTIL)
    found = site.browser.get("/api/v1/runs/digits-u").json()["experiments"]["tune"]
    assert found["until"] == {"condition": "loss <= 0.1", "reached": 6}
    assert found["tasks"]["succeeded"] == 6
    assert "Ends at loss &lt;= 0.1: reached by 6 of 6 tasks" in site.page("/runs/digits-u")


def test_two_webhooks_of_one_target_are_told_apart_and_their_topics_are_words(site):
    for _ in range(2):
        site.browser.post(
            "/notifications", data={"target": "https://x.example/h", "kind": "webhook", "topic": "run.ended"}
        )
    text = site.page("/notifications")
    heads = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert len(heads) == len(set(heads)) == 2, text
    assert "webhook: a run has ended; since <time" in text
    assert "nothing sent yet" in text


def test_models_have_a_column_for_each_metric_and_counters_are_none(site):
    models = [
        {"model": "r/a/0", "metrics": {"step": 8, "loss": 0.5, "seconds": 3}, "parameters": {"lr": 0.1}}
    ]
    from trainmaster.web import models as pages

    request = SimpleNamespace(state=SimpleNamespace(caller=None), url=SimpleNamespace(path="/models"))
    found = SimpleNamespace(models=lambda *_: {"models": models, "next": None})
    text = pages.models(request, found).body.decode()
    assert re.findall(r'<th scope="col"[^>]*>(.*?)</th>', text) == ["Model", "loss", "lr"]


def test_members_are_not_sent_to_a_shell(site):
    assert "trainmaster" not in re.search(r"<main.*</main>", site.page("/runs/none", 404), re.S)[0]


def test_when_a_target_is_reached_and_what_was_adapted_are_on_the_page_and_in_rest(site):
    text = """\
name: aims
experiments:
  train: {steps: 400, target: {metric: loss, at_most: 0.1}, adapt: true, command: python train.py}
"""
    service, recipe = site.service, Recipe.from_text(text)
    new = AcceptedRun(
        "aims-1", "aims", recipe.model_dump_json(), "r.yaml", "local", str(service.home.root / "code"),
        service.home.store_url, [("train", 1)], home=str(service.home.root), home_id=service.home.identity(),
        submission=Submission("ann", None),
    )  # fmt: skip
    lease = service.database.create_run(new, 1.0)
    place = service.home.attempt("aims-1", "train", 0, 1)
    place.make_directories(["worker-0"])
    rows = [{"step": step, "loss": step**-0.5} for step in range(2, 50, 2)]
    place.metrics("worker-0").write_text("".join(json.dumps(row) + "\n" for row in rows))
    begins = TaskChange("train", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True)
    slow = Note("worker-0 waits for <node-1>: another machine is asked for", "train", topic=ADAPTED)
    service.database.commit(lease, [begins, RunChange(State.WAITING, State.RUNNING), slow], 2.0)
    try:
        assert f"adapt: {html.escape(slow.message)}</td>" in site.page("/runs/aims-1")
        assert '<p id="targets"' in site.page("/runs/aims-1")
        (told,) = site.browser.get("/api/v1/runs/aims-1/targets").json()["targets"]
        assert (told["condition"], told["aim"], told["step"]) == ("loss <= 0.1", 0.1, 48)
        assert told["steps"]["p50"] == pytest.approx(100, rel=0.25)
        assert told["words"].startswith("train/0 to loss <= 0.1: at step ")
        assert all(len(row) == 4 for row in told["fan"])
        summary = site.browser.get("/api/v1/runs/aims-1").json()
        assert summary["experiments"]["train"]["until"]["condition"] == "loss <= 0.1"
        assert summary["experiments"]["train"]["adapted"] == [{"at": 2.0, "words": slow.message}]
    finally:
        lost = Note("worker-0: the last 5 bytes are lost", "train", 0, 1, topic=OUTPUT_LOST)
        service.database.commit(lease, [lost, RunChange(State.RUNNING, State.DONE, EndReason.CANCELLED)], 3.0)
        service.database.release(lease, 4.0)
    assert f'class="note">train/0: {lost.message}</td>' in site.page("/runs/aims-1")
    summary = site.browser.get("/api/v1/runs/aims-1").json()
    (told,) = summary["experiments"]["train"]["lost_output"]
    assert told == {"at": 3.0, "words": f"train/0: {lost.message}"}
    assert site.browser.get("/api/v1/runs/aims-1/targets").json() == {"targets": []}
    assert '<p id="targets"' not in site.page("/runs/aims-1")
