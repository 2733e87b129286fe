"""The pages of a new run and of its quote, without JavaScript: what is filled in, sent, drawn and taken."""

from __future__ import annotations

import contextlib
import html
import json
import re
import warnings
from dataclasses import replace

import pytest

from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Quote, QuotedQueue, Rented
from trainmaster.advisor.quote.unknown import quote_of_unknown
from trainmaster.control.task.layout import Home
from trainmaster.db import quote_requests as rows
from trainmaster.service import Service
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.teams.team_budget import set_budget

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.uploads.git_code import GitCode
from trainmaster.service.users.caller import caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.log_normal import LogNormal
from trainmaster.web.pages import add_pages
from trainmaster.web.quotes import QuoteFigure

RENTED = """\
name: job
provider: aws
experiments:
  train:
    command: python train.py
    steps: 1000
    batch: {global: 64}
    distributed: {strategy: allreduce, workers: auto}
"""


def cluster(instance, count, price):
    worker = {"instance": instance, "count": count, "spot": False, "processes": count, "usd_per_hour": price}
    return {"worker": worker, "parameter_server": None, "tasks_at_once": 1, "usd_per_hour": count * price}


def answer():
    interval = {"p5": 3000.0, "p50": 3600.0, "p95": 5400.0}
    cost = {"p5": 1.0, "p50": 1.25, "p95": 2.5}
    one = {
        "cluster": cluster("g5.xlarge", 2, 1.0),
        "time_s": interval,
        "cost_usd": cost,
        "bottleneck": "the <network>",
        "pareto": [
            {"cluster": cluster("p4.24xlarge", 1, 30.0), "time_s": 600.0, "cost_usd": 5.0},
            {"cluster": cluster("g5.xlarge", 2, 1.0), "time_s": 3600.0, "cost_usd": 1.25},
        ],
        "measurements": 3,
        "candidates": 40,
        "next_measurement": {
            "workers": 2,
            "instance": "g5.xlarge",
            "seconds": 60.0,
            "cost_usd": 0.03,
            "width_now": 1.5,
            "width_then": 1.1,
            "time_s": {"p5": 3400.0, "p50": 3600.0, "p95": 4000.0},
        },
        "notes": [],
        "target": {"words": "train to acc >= 0.9: at step 640 (500 to never) of at most 1,000"},
    }
    total = {"time_s": interval, "cost_usd": cost, "end_usd": 0.25}
    more = {"policy": "quote", "catalogue": "builtin", "as_of": "2026-11-01", "queue": {"words": "2 h"}}
    more["warnings"] = ["mind the gap", "waits before that 2 h; neither time nor cost have it"]
    return {**one, "experiments": {"train": one}, "total": total, **more}


@contextlib.contextmanager
def server(root, environ=()):
    home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'd.db'}")
    service = Service(home)
    yield make_state(service, dict(environ))
    service.close()


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    with server(tmp_path_factory.mktemp("pages")) as found:
        yield found


@pytest.fixture(scope="module")
def browser(state):
    app = make_app(state)
    add_pages(app)
    token = state.access.create_token("me", ["read", "run"])["token"]
    return TestClient(app, headers={"authorization": f"Bearer {token}"}, follow_redirects=False)


def quoted(state, browser, told):
    """Where a quote is that has come to that."""
    place = browser.post("/new/quote", data={"recipe": RENTED}).headers["location"]
    row = rows.named(place.rpartition("/")[2])
    rows.end(state.service.database, row, 1e12, answer=json.dumps(told), error=None)
    return place


def recipe_of(page):
    return html.unescape(re.search(r'<textarea id="recipe".*?>\n(.*?)</textarea>', page, re.DOTALL)[1])


def test_what_is_filled_in_becomes_a_recipe_that_is_checked(browser):
    page = browser.get("/new").text
    assert "command: python main.py" in recipe_of(page)
    filled = {"main": "train.py", "parameters": "lr: 0.1, <b>", "provider": "aws", "workers": "4"}
    page = browser.post("/new/recipe", data=filled).text
    assert "python train.py --lr {{lr}}" in recipe_of(page)
    assert 'name="main" value="train.py"' in page
    assert "<b>" not in page
    part = asked(browser, "/new/recipe", **filled)
    assert part["recipe"] == recipe_of(page)
    assert (part["fields"]["main"], part["fields"]["parameters"]) == ("train.py", "lr: 0.1, <b>")
    assert "line 2, column 1" in asked(browser, "/new/recipe", recipe="name: x\nexperimentz: 1\n")["checked"]
    chosen = f"{RENTED}    framework: pytorch\n    container: auto\n"
    told = asked(browser, "/new/recipe", recipe=chosen)["checked"]
    assert "container: auto is docker.io/pytorch/pytorch:" in told


def asked(browser, path, **filled):
    """What our script is answered."""
    return browser.post(path, data=filled, headers={"hx-request": "true"}).json()


def test_a_field_is_written_into_the_recipe_that_is_there_also_when_it_is_sent(state, browser):
    text = f"# mine\n{RENTED}    retries: 3  # often\n"
    seen = asked(browser, "/new/recipe", recipe=text)
    assert (seen["recipe"], seen["fields"]["main"], seen["fields"]["workers"]) == (text, "train.py", "auto")
    typed = {**seen["fields"], "name": "renamed", "recipe": text, "was": seen["was"]}
    changed = asked(browser, "/new/recipe", **typed)
    assert changed["recipe"] == text.replace("job", "renamed")
    again = {**changed["fields"], "recipe": changed["recipe"], "was": changed["was"]}
    assert asked(browser, "/new/recipe", **again)["recipe"] == changed["recipe"]
    sent = browser.post("/new/quote", data=typed)  # the moment after: nothing was written yet
    name = sent.headers["location"].rpartition("/")[2]
    assert (
        state.quotes.ask_of(caller("owner", None, ["read", "run"]), QUOTE, name).recipe == changed["recipe"]
    )
    told = browser.post("/new/quote", data=typed, headers={"hx-request": "true"})
    assert (told.status_code, told.headers["hx-redirect"][:8]) == (204, "/quotes/")
    broken = {**typed, "recipe": "name: ["}
    page = browser.post("/new", data=broken)
    assert recipe_of(page.text) == "name: [", "what cannot be read is not lost, nor what was filled in"
    assert 'value="renamed"' in page.text
    assert 'value="job"' not in page.text
    mended = {
        **broken,
        "recipe": text,
        "was": html.unescape(re.search('name="was" value="(.*?)"', page.text)[1]),
    }
    assert asked(browser, "/new/recipe", **mended)["recipe"] == changed["recipe"]
    assert browser.post("/new", data=broken, headers={"hx-request": "true"}).status_code == 422
    own = "name: own\nexperiments:\n  a: {command: 'make all', search: {metric: x, goal: max}}\n"
    seen = asked(browser, "/new/recipe", recipe=own)
    sent = {**seen["fields"], "recipe": own, "was": seen["was"]}
    assert sent["main"] == ""
    assert asked(browser, "/new/recipe", **sent)["recipe"] == own, "an empty field is no change of it"
    assert asked(browser, "/new/recipe", **{**sent, "recipe": RENTED})["recipe"] == RENTED
    odd = asked(browser, "/new/recipe", recipe=RENTED.replace("allreduce", "own-way"))
    page = browser.post("/new/recipe", data={"recipe": odd["recipe"]}).text
    assert "<option selected>own-way</option>" in page, "else it would be taken out of the recipe"


def test_wrong_recipes_and_amounts_come_back_as_they_were(browser):
    for path in ("/new", "/new/quote"):
        page = browser.post(path, data={"recipe": "name: x\nwrong: 1\n"})
        assert page.status_code == 422
        assert recipe_of(page.text) == "name: x\nwrong: 1\n"
    assert "no amount" in browser.post("/new", data={"recipe": RENTED, "max_usd": "much"}).text
    assert "no number of workers" in browser.post(
        "/new/quote", data={"recipe": RENTED, "most_workers": "some"}
    ).text.replace("&#39;", "'")


def test_a_form_that_is_sent_twice_starts_one_run(tmp_path):
    recipe = "name: job\nexperiments:\n  main: {command: 'true'}\n"
    with server(tmp_path) as state:
        app = make_app(state)
        add_pages(app)
        token = state.access.create_token("me", ["read", "run"])["token"]
        me = TestClient(app, headers={"authorization": f"Bearer {token}"}, follow_redirects=False)

        def send(path, shown="", **filled):
            key = re.search(r'name="key" value="(\w+)"', me.get(shown or path).text)[1]
            places = []
            for data in (filled, filled, {**filled, "key": ""}):
                sent = me.post(path, data={"key": key, **data})
                assert sent.status_code == 303, sent.text
                places.append(sent.headers["location"])
            first, second, other = places
            assert first == second != other
            return first, key

        first, key = send("/new", recipe=recipe)
        changed = me.post("/new", data={"recipe": recipe.replace("job", "job2"), "key": key})
        assert changed.headers["location"].startswith("/runs/job2-")
        wrong = me.post("/new", data={"recipe": "name: x\nwrong: 1\n", "key": key})
        assert f'name="key" value="{key}"' in wrong.text
        again, _ = send(f"{first}/again", recipe=recipe, act="run")
        example, _ = send("/examples/digits", "/examples")
        assert len({first, again, example}) == 3
        assert len(state.service.runs()["runs"]) == 7


def test_code_is_sent_as_a_plain_form(state, browser):
    """As browsers without JavaScript do; the other fields stay as they were filled in."""
    filled = {"name": "mine", "main": "train.py", "provider": "aws", "code": "old"}

    def send(name, content, **headers):
        return browser.post("/new/code", data=filled, files={"file": (name, content)}, headers=headers)

    found = send("../train.py", b"print(1)\n")
    assert found.status_code == 200
    assert "train.py is sent." in found.text
    digest = re.search(r'name="digest" id="digest" value="(\w{64})"', found.text)[1]
    code = CodeUploads(state.service.home, None).find(digest)
    assert [(each.name, each.read_text()) for each in code.iterdir()] == [("train.py", "print(1)\n")]
    assert "command: python train.py" in recipe_of(found.text)
    assert "name: mine" in recipe_of(found.text)
    for name, content, why in (
        ("a.exe", b"x", "no archive"),
        ("a.zip", b"x", "wrong code"),
        ("", b"", "chosen"),
    ):
        wrong = send(name, content)
        assert wrong.status_code == 422
        assert why in wrong.text
        assert "train.py" in wrong.text
    assert send("a.py", b"#" * (5 << 20)).status_code == 413
    session = state.access.open_session(caller("owner", None, ["read", "run"]))
    for origin, status in (("http://elsewhere.example", 403), ("http://testserver", 200)):
        headers = {"authorization": "", "cookie": f"trainmaster={session}", "origin": origin}
        assert send("a.py", b"1", **headers).status_code == status


@pytest.mark.parametrize(
    ("files", "typed", "main", "said"),
    [
        ({"train.py": "1"}, "main.py", "train.py", ""),
        ({"a.py": "1", "b.py": "if __name__ == '__main__': 1"}, "main.py", "b.py", ""),
        ({"fit.py": "1", "lib.py": "1"}, "main.py", "fit.py", "should be <code>lib.py</code>"),
        ({"main.py": "1", "train.py": "1"}, "main.py", "main.py", ""),
        ({"notes.txt": "1"}, "main.py", "main.py", "sent has no <code>main.py</code>"),
        ({"train.py": "1"}, "../main.py", "../main.py", ""),
    ],
)
def test_of_code_that_has_come_a_script_is_the_main_one(state, browser, tmp_path, files, typed, main, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code = CodeUploads(state.service.home, None).add_directory(tmp_path)
    first = asked(browser, "/new/recipe", main=typed)
    sent = {**first["fields"], "was": first["was"], "recipe": first["recipe"], "digest": code}
    found = asked(browser, "/new/recipe", **sent)
    assert f"command: python {main}" in found["recipe"].replace('"', "")
    assert said in found["checked"]
    named = {**found["fields"], "was": found["was"], "recipe": found["recipe"], "main": "own.py"}
    again = asked(browser, "/new/recipe", **named)
    assert again["fields"]["main"] == "own.py", "somebody has named it since"
    assert "sent has no <code>own.py</code>" in again["checked"]


def test_who_has_no_budget_is_not_asked_to_wait_for_it(tmp_path):
    with server(tmp_path) as state:
        app = make_app(state)
        add_pages(app)
        token = state.access.create_token("me", ["read", "run"])["token"]
        me = TestClient(app, headers={"authorization": f"Bearer {token}"})
        assert "Wait until" not in me.get("/new").text
        set_budget(state.service.database, None, {"monthly_usd": 9.0}, 1e9)
        assert "Wait until it fits in the budget" in me.get("/new").text


@pytest.fixture
def shared(tmp_path):
    with server(tmp_path) as found:
        found.access.make_team("red", None)
        yield found


def test_a_team_rents_and_has_its_code_fetched(shared, monkeypatch):
    app = make_app(shared)
    add_pages(app)
    token = shared.access.create_token("ann", ["read", "run"], "red")["token"]
    ann = TestClient(app, headers={"authorization": f"Bearer {token}"}, follow_redirects=False)
    page = ann.get("/new").text
    assert "<option>local" not in page
    assert "provider: aws" in recipe_of(page)
    fetched = []
    monkeypatch.setattr(GitCode, "add", lambda self, *what: fetched.append(what) or ("0" * 64, "c0ffee" * 7))
    page = ann.post("/new/git", data={"code": "https://example.com/a.git@main", "provider": "aws"}).text
    assert fetched == [("https://example.com/a.git", "main")]
    assert "a.git@main is here, as of c0ffeec0ffee" in page
    assert f'value="{"0" * 64}"' in page
    assert "code:" not in recipe_of(page)
    assert ann.post("/new/git", data={"code": "ftp://example.com/a"}).status_code == 422


def test_a_quote_is_a_picture_from_which_a_cluster_is_taken(state, browser):
    sent = browser.post("/new/quote", data={"recipe": RENTED})
    assert sent.status_code == 303, re.findall("mistakes.*", sent.text)
    place = sent.headers["location"]
    page = browser.get(place).text
    assert "Waiting for a free place" in page
    assert 'http-equiv="refresh"' in page
    end = {"answer": json.dumps(answer()), "error": None}
    rows.end(state.service.database, rows.named(place.rpartition("/")[2]), 1e12, **end)
    page = browser.get(place).text
    assert not any(each in page for each in ("refresh", "hx-get", "neither time nor cost"))
    for text in (
        "9 of 10 such runs: 50 min to 1 h 30 min, $1.00 to $2.50.",
        "Limited by the &lt;network&gt;",
        "mind the gap",
        "It waits before that 2 h.</p>",
        "<p>Train to acc &gt;= 0.9: at step 640 (500 to never) of at most 1,000.</p>",
        "would make this quote narrower",
        "quoted</span>, at most $2.75",
        "1 x p4.24xlarge",
        "2026-11-01",
    ):
        assert text in page, text
    assert page.count('class="point"') == 4, "a picture for a desk, and one for a phone"
    drawn = re.findall(r'<svg width="([\d.]+)" height="([\d.]+)" viewBox="0 0 ([\d.]+) ([\d.]+)"', page)
    assert [each[:2] for each in drawn] == [each[2:] for each in drawn], "its texts do not grow with it"
    assert len(drawn) == 2
    assert page.index("Go on<span") < page.index("<table"), "the button is on the first screen"
    assert page.count("Take it") == 1
    assert "style=" not in page
    taken = browser.get(f"{place}/change?experiment=train&index=0").text
    assert "instance: p4.24xlarge" in recipe_of(taken)
    assert "workers: 1" in recipe_of(taken)
    assert 'name="max_usd" value="13.7' in taken
    same = browser.get(f"{place}/change").text
    assert recipe_of(same) == RENTED
    assert 'value="2.75"' in same, "a cap without the end of its run would end it before"
    for field in ('name="main" value="train.py"', 'name="steps" value="1000"', 'name="workers" value="auto"'):
        assert field in same, "what is changed there is written into the recipe, with all of these"
    assert browser.get(f"{place}/change?experiment=train&index=9").status_code == 404
    for total in ({"time_s": None, "cost_usd": None}, answer()["total"] | {"without": ["eval"]}):
        place = quoted(state, browser, answer() | {"total": total})
        taken = browser.get(f"{place}/change?experiment=train&index=0").text
        assert re.search('name="max_usd"(?! value="[^"])', taken), "what all of it costs is not known"


def test_a_quote_says_where_its_doubt_comes_from_and_what_a_minute_would_buy(state, browser):
    explained = answer()
    boot = {"phase": "<machines>", "time_s": {"p5": 60.0, "p50": 90.0, "p95": 300.0}, "doubt": 0.126}
    steps = {"phase": "steps", "time_s": {"p5": 2940.0, "p50": 3510.0, "p95": 5100.0}, "doubt": 0.874}
    least = {"phase": "saving", "time_s": {"p5": 0.0, "p50": 1.0, "p95": 2.0}, "doubt": -0.0001}
    more = {"instance": "g5.xlarge", "seconds": 150.0, "cost_usd": 0.05}
    more |= {"now_s": explained["time_s"], "then_s": {"p5": 3300.0, "p50": 3600.0, "p95": 4200.0}}
    explained["experiments"]["train"] |= {"phases": [boot, steps, least], "more_measuring": more}

    def page_of(told):
        return browser.get(quoted(state, browser, told)).text

    page = page_of(explained)
    table = page[page.index("<caption>Where the time goes, and where the doubt comes from") :]
    cells = re.findall("<t[hd] .*?</t[hd]>", table.split("</table>")[0])
    assert [html.unescape(re.sub("<[^>]*>", "", each)) for each in cells] == [
        *("Phase", "Time", "With 90 %", "Of the doubt"),
        *("<machines>", "1 min 30 s", "1 min to 5 min", "13 %"),
        *("steps", "59 min", "49 min to 1 h 25 min", "87 %"),
        *("saving", "1 s", "0 s to 2 s", "0 %"),
    ]
    cut = "would cut this time to about 55 min to 1 h 10 min"
    assert f"<p>A minute on 1 x g5.xlarge (2 min 30 s in all, $0.05) {cut}.</p>" in page
    explained["experiments"]["train"] |= {"phases": [], "more_measuring": None}
    for told in (answer(), explained):
        page = page_of(told)
        assert "where the doubt comes from" not in page
        assert "would cut this time" not in page


def test_a_quote_that_costs_nothing_has_no_prices(state, browser):
    free = json.loads(json.dumps(answer()).replace("30.0", "0.0"))
    one = free["experiments"]["train"]
    nothing = {"p5": 0.0, "p50": 0.0, "p95": 0.0}
    one |= {"cluster": cluster("local", 1, 0.0), "cost_usd": nothing, "next_measurement": None}
    one["pareto"] = [{"cluster": one["cluster"], "time_s": 3600.0, "cost_usd": 0.0}]
    free["total"] |= {"cost_usd": nothing, "without": ["eval"]}
    page = browser.get(quoted(state, browser, free)).text
    assert "nothing is rented, without eval<" in page
    assert "$0" not in page
    assert "<figure" not in page
    assert "beaten in both" not in page, "there is one"
    figure = QuoteFigure.of({**answer()["experiments"]["train"], "cost_usd": {**nothing, "p95": 9.0}})
    assert figure.then_y < figure.y, "above the axis and its labels"


def test_unknown_traffic_is_measured_by_a_button_under_a_cap_and_once(tmp_path, monkeypatch):
    gang = "{strategy: ps-async, workers: auto}"
    text = RENTED.replace("{strategy: allreduce, workers: auto}", gang).replace("train.py", "'true'")
    types = {
        "workers": ["c4.xlarge", "m4.xlarge"],
        "servers": ["m4.large"],
        "traffic_mbps": {"m4.xlarge": 90.0},
        "usd_per_hour": {"c4.xlarge": 0.231, "m4.xlarge": 0.25, "m4.large": 0.125},
    }
    with server(tmp_path) as state:
        app = make_app(state)
        add_pages(app)
        token = state.access.create_token("me", ["read", "run"])["token"]
        me = TestClient(app, headers={"authorization": f"Bearer {token}"}, follow_redirects=False)
        place = me.post("/new/quote", data={"recipe": text, "policy": "scala-opt"}).headers["location"]
        error = {"title": "unknown", "hint": "Measure.", "types": {"train": types}}
        name = rows.named(place.rpartition("/")[2])
        rows.end(state.service.database, name, 1e12, answer=None, error=json.dumps(error))
        page = me.get(place).text
        assert "Measure first: c4.xlarge: 2 min, $0.018, at most $0.18" in page
        assert "Scala-Opt needs the traffic" in page
        sent = []

        def submit(_, asked, key):
            sent.append((asked, key))
            return "run-1", True, []

        monkeypatch.setattr(state.submissions, "submit", submit)
        assert 'name="max_usd" value="0.18"' in me.get(place).text
        assert me.post(f"{place}/measure", data={"max_usd": "0.18"}).headers["location"] == "/runs"
        route = f"/api/v1{place}/measure"
        (told,) = me.get(route).json()
        assert (told["experiment"], told["instance"], told["cap_usd"]) == ("train", "c4.xlarge", 0.18)
        refused = me.post(route, json={"max_usd": 0.17})
        assert (refused.status_code, len(sent)) == (422, 1)
        assert "up to $0.18, and at most $0.17" in refused.json()["title"]
        assert me.post(route, json={"max_usd": 0.18}).json() == {"runs": ["run-1"]}
        assert me.post(route).status_code == 422
    assert len({key for _, key in sent}) == 1  # the same key twice is one run
    asked = sent[0][0]
    assert asked.max_usd == 0.18
    train = Recipe.from_text(asked.recipe).experiments["train"]
    assert (train.hardware.instance, train.distributed.workers) == (("c4.xlarge",), 1)
    assert (train.distributed.hardware["ps"].instance, train.timeout_s) == (("m4.large",), 120.0)


def test_a_job_of_which_nothing_is_known_is_quoted_and_measured_by_a_button(state, browser):
    (name,) = Recipe.from_text(RENTED).experiments
    shape = ClusterShape(Rented("m4.large", 1, usd_per_hour=0.1))
    recipe = Recipe.from_text(RENTED + "budget: {total: $2}\n")
    before = {name: [("machines", LogNormal(30.0, 0.1)), ("setup", LogNormal(10.0, 0.0))]}
    made = quote_of_unknown(recipe, {name: shape}, before, {name: "not here"}, ())
    types = {"workers": ["m4.large"], "servers": [], "traffic_mbps": {}, "usd_per_hour": {"m4.large": 0.1}}
    types |= {"traffic": False}
    page = browser.get(quoted(state, browser, replace(made, to_measure={name: types}).as_dict())).text
    text = " ".join(re.sub("<.*?>", "", page).split())
    assert "Starts in 36 s to 46 s Nothing is known of this job yet: how long it runs is not known;" in text
    assert "budget.total ends it at $2.00, after 20 h at most." in text
    assert "machines</td>" in page
    assert "Measure first: m4.large: 1 min, $0.0033, at most $0.05" in text
    assert page.index("Measure first") < page.index("quote-go"), "measuring comes first"
    assert "<svg width" not in page, "no picture of one point"
    types |= {"processes": 2, "machines": {"m4.large": 2}}  # a gang of no known length, then a point
    for point, said in (({}, "A minute of work shows how fast"), ({"seconds": 70.0}, "quote narrower")):
        place = quoted(state, browser, replace(made, to_measure={name: types | point}).as_dict())
        text = " ".join(re.sub("<.*?>", "", browser.get(place).text).split())
        assert re.search(f"{said}.*Measure first: m4.large with 2 workers: 1 min, .0.00", text)
    told = replace(made, unknown=replace(made.unknown, why="set `steps`", like_others_s=Interval(9, 30, 60)))
    assert "steps</code>; like your other jobs" in browser.get(quoted(state, browser, told.as_dict())).text


def test_what_a_quote_wants_is_shown_as_code_and_only_to_who_has_a_shell(state, browser):
    place = browser.post("/new/quote", data={"recipe": RENTED}).headers["location"]
    hint = "Run `aws configure`. Write `hardware: {region: us-east-1}`."
    error = json.dumps({"title": "no region is chosen", "hint": hint})
    rows.end(state.service.database, rows.named(place.rpartition("/")[2]), 1e12, answer=None, error=error)
    page = browser.get(place).text
    assert "Write <code>hardware: {region: us-east-1}</code>." in page
    assert "aws configure" not in page
    admin = state.access.create_token("chief", ["read", "run", "admin"])["token"]
    page = browser.get(place, headers={"authorization": f"Bearer {admin}"}).text
    assert "Run <code>aws configure</code>. Write" in page


def test_a_quote_that_failed_says_why_and_another_teams_is_not_there(state, browser):
    place = browser.post("/new/quote", data={"recipe": RENTED}).headers["location"]
    browser.post(f"{place}/cancel")
    assert "it was cancelled" in browser.get(place).text
    assert recipe_of(browser.get(f"{place}/change").text) == RENTED
    with_other = caller("ann", "red", ["read", "run"])
    with pytest.raises(NotFoundError):
        state.quotes.show(with_other, QUOTE, place.rpartition("/")[2])


def test_the_recommender_draws_time_against_machines(browser):
    page = browser.get("/recommend?batch=64000&latency_ms=20").text
    assert "Take <strong>3</strong> machines" in page
    assert page.count("<circle") == 3
    assert "guessed" not in page, "one machine cannot do that batch"
    assert ("Per hour</th>" in page, "$" in page) == (False, False), "no price is known"
    page = browser.get("/recommend?batch=1280&latency_ms=100").text
    assert "Take <strong>1</strong> machine:" in page
    assert "<em>lookup</em> says 2, 1 min 3 s" in page
    assert "the table says 20 s" in page
    page = browser.get("/recommend?batch=64000&latency_ms=0&usd_per_hour=.0928&max_usd=.04&rule=lookup").text
    assert "Take <strong>3</strong> machines" in page
    assert "That is $0.039, at $0.28 per hour" in page
    table = "workers,batch_size,latency_ms,time_per_epoch_s\n1,64,5,\n2,64,5,30\n4,64,5,40\n"
    asked = {"batch": "64", "latency_ms": "5", "rule": "lookup"}
    page = browser.post("/recommend", data=asked, files={"file": ("mine.csv", table)}).text
    assert "Take <strong>2</strong> machines" in page
    assert "4,64,5,40" in page, "it is kept in the page for the next question"
    page = browser.get("/recommend").text
    assert 'method="post" enctype="multipart/form-data"' in page, "its one button, and Enter, send the file"
    assert page.count("<button", page.index('class="filters"')) == 1
    empty = browser.post("/recommend", data=asked | {"batch": "64000", "latency_ms": "20"})
    page = browser.get(empty.headers["location"]).text  # an address that can be shared
    assert "the best of 3, by 113 measurements and the rule <em>lookup" in page, "no file: it is the profile"
    page = browser.post("/recommend", data=asked, files={"file": ("mine.csv", "a\n")}).text
    assert "mine.csv:1: no column" in page
    page = browser.get("/recommend?batch=64000&latency_ms=0&beta=200&usd_per_hour=1").text
    assert "Take <strong>3</strong> machines" in page
    assert "$3.00" in page
    assert browser.get("/recommend?beta=much").status_code == 422


SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--data", required=True)
parser.add_argument("--fast", action="store_true")
"""


def test_arguments_of_the_script_are_shown_also_to_teams(shared, tmp_path):
    """They are read from its text, in a process with limits; nothing of it is run."""
    (tmp_path / "train.py").write_text(SCRIPT)
    app = make_app(shared)
    add_pages(app)
    token = shared.access.create_token("amy", ["read", "run"], "red")["token"]
    amy = TestClient(app, headers={"authorization": f"Bearer {token}"}, follow_redirects=False)
    code = CodeUploads(shared.service.home, "red").add_directory(tmp_path)
    found = asked(amy, "/new/recipe", main="train.py", provider="aws", digest=code)
    assert re.findall('data-give="(.*?)"', found["takes"]) == ["--lr 0.1", "--data", "--fast"]
    assert "does not start without <code>--data</code>" in found["takes"]
    sent = {**found["fields"], "was": found["was"], "recipe": found["recipe"], "arguments": "--data=x"}
    assert "does not start without" not in asked(amy, "/new/recipe", **sent)["takes"]
    (tmp_path / "train.py").write_text("(" * 90_000)
    code = CodeUploads(shared.service.home, "red").add_directory(tmp_path)
    assert asked(amy, "/new/recipe", main="train.py", digest=code)["takes"].strip() == ""


def test_a_job_is_estimated_while_it_is_filled_in_also_where_nothing_is_known(tmp_path, monkeypatch):
    interval, dollars = Interval(60.0, 120.0, 240.0), Interval(0.01, 0.02, 0.05)
    seen = ExperimentQuote("train", ClusterShape(Rented("local", 1)), interval, dollars, measurements=1)
    queue = QuotedQueue(holders="<a>")
    known = Quote({"train": seen}, interval, dollars, not_quoted={"last": "not measured yet"}, queue=queue)
    with server(tmp_path, {"AWS_REGION": "us-east-1"}.items()) as state:
        app = make_app(state)
        add_pages(app)
        token = state.access.create_token("me", ["read", "run"])["token"]
        me = TestClient(app, headers={"authorization": f"Bearer {token}"})

        def said(**form):
            answer = me.post("/new/estimate", data={"recipe": HERE, **form}).raise_for_status()
            return " ".join(re.sub("<.*?>", "", answer.text).split())

        assert re.fullmatch(
            "Nothing is known .*: it starts in [\\d.]+ s to [\\d.]+ s; how long .* known.", said()
        )
        rented = RENTED.replace("auto", "1")
        assert "it starts in 42 s to 3 min 22 s" in said(recipe=rented)
        assert said(recipe=rented, budget="5").endswith("It ends at $5.00 in any case.")
        capped = said(recipe=f"{rented}budget: {{total: $5}}\n", budget="5")
        assert ("known; budget.total ends it at $5" in capped, "in any case" in capped) == (True, False)
        assert "$0.001 is used up before" in said(recipe=f"{rented}budget: {{total: $0.001}}\n")
        assert "machinenot knownnothing" in said(recipe=rented.replace("aws", "[hosts, local]")), "it is free"
        monkeypatch.setattr(Quoter, "quote", lambda *_: known)
        assert said() == (
            "About 2 min and $0.02 without last; 9 of 10 such runs: 1 min to 4 min, $0.01 to $0.05. "
            "It waits before that for hosts that others hold, nothing says how long (&lt;a&gt;). "
            "Not in it: last: not measured yet."
        )
        monkeypatch.setattr(Quoter, "quote", lambda *_: replace(known, time_s=None, cost_usd=None))
        assert said() == "No estimate: nothing is known of a part of it yet."
        told = "No estimate: no place would give what .* asks for. hosts: no, there is no .* Ask an admin .*"
        assert re.fullmatch(told, said(recipe=rented.replace("aws", "[hosts, lab]")))
        assert me.post("/new/estimate", data={"recipe": "name: x\nwrong: 1\n"}).status_code == 204


HERE = "name: job\nexperiments:\n  train: {command: 'true'}\n"
