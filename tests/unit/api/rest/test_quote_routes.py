"""Quotes, plans, offers, clusters, the score and numbers for Prometheus: each tells what one sees."""

from __future__ import annotations

import functools
import itertools
import json
import threading

import pytest

from trainmaster import __version__
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.db import NewMeasurement, quote_requests, tables
from trainmaster.service.models.model_files import ModelFiles
from trainmaster.service.quotes.quote_ask import QuoteAsk
from trainmaster.service.users.caller import caller
from trainmaster.spec import Strategy
from trainmaster.testing.waits import until

QUOTED = """\
name: job
provider: aws
experiments:
  main:
    command: python train.py
    steps: 1000
    batch: {global: 64}
    distributed: {strategy: ps-async, workers: 4}
"""


TABLE = "workers,batch_size,latency_ms,time_per_epoch_s\n1,64,5,\n2,64,5,30\n4,64,5,40\n"


def test_offers_are_those_of_a_catalogue_by_name_with_the_dates_of_their_prices(served):
    def ask(query):
        return served.ask("red-read", "GET", f"/api/v1/offers?{query}")

    found = ask("catalogue=fc2-2018&instance=g3.4xlarge&instance=m4.large&limit=1").json()
    assert (len(found["offers"]), found["total"]) == (1, 2)
    assert found["offers"][0]["as_of"] == found["as_of"]
    assert ask("catalogue=/etc/passwd").status_code == 422
    assert ask("catalogue=fc2-2018&sort=beauty").status_code == 422
    assert ask("colour=red").status_code == 422


def test_clusters_are_those_of_ones_own_runs(served):
    row = {"provider": "aws", "home_id": served.service.home.identity(), "state": "UP", "data": "{"}
    for team in ("red", "blue"):
        values = {**row, "id": f"c-{team}", "run_id": f"job-{team}", "changed_at": 1.0}
        insert = tables.cluster.insert().values(**values)
        served.service.database.write(lambda connection, _, insert=insert: connection.execute(insert))
    found = served.ask("red-read", "GET", "/api/v1/clusters").json()["clusters"]
    assert [(each["id"], each["state"]) for each in found] == [("c-red", "damaged")]
    assert len(served.ask("admin", "GET", "/api/v1/clusters").json()["clusters"]) == 2
    assert served.ask("red-run", "DELETE", "/api/v1/clusters/c-red").status_code == 403, "needs read, too"
    for answer in (
        served.ask("red-user", "DELETE", "/api/v1/clusters/c-blue"),
        served.ask("red-user", "POST", "/api/v1/clusters/end", json={"clusters": ["c-blue"]}),
    ):
        assert answer.status_code == 404
    assert served.ask("owner", "POST", "/api/v1/clusters/end", json={"clusters": None}).json() == {
        "ended": [],
        "told": [],
    }


def test_prometheus_is_told_numbers_of_what_the_token_sees(served):
    pytest.importorskip("prometheus_client", reason="the extra `server` is of an earlier day")
    told = served.ask("red-read", "GET", "/metrics").text
    assert 'trainmaster_runs{state="DONE"} 1.0' in told
    assert 'trainmaster_runs{state="DONE"} 3.0' in served.ask("admin", "GET", "/metrics").text
    for name in ("usd_per_hour", "loop_lag_seconds", "runs_driven", 'quotes_kept{kind="binding"}'):
        assert f"trainmaster_{name} " in told
    assert "job-red" not in told


def test_clients_of_other_versions_are_told_so(served):
    def ask(version, path="/api/v1/info"):
        return served.ask("red-read", "GET", path, headers={"trainmaster-version": version})

    assert ask("999.0.1").status_code == 426
    assert "pip install" in ask("999.0.1").json()["hint"]
    assert ask("999.0.1").headers["upgrade"].startswith("trainmaster/")
    for version in (__version__, "", "newest"):
        assert ask(version).status_code == 200
        assert ask(version).headers["trainmaster-version"] == __version__
    assert ask("999.0.1", "/models").status_code == 200, "pages are of the server itself"


def test_the_score_counts_only_what_one_sees(served):
    found = served.ask("red-read", "GET", "/api/v1/score").json()
    assert found["estimate"]["runs"] == 0


def test_anwars_question_is_answered_for_his_job_and_ones_own(served):
    def ask(query, who="red-read"):
        return served.ask(who, "GET", f"/api/v1/recommend?{query}")

    assert ask("batch=64000&latency_ms=0").json()["workers"] == 4
    found = ask("batch=64000&latency_ms=20").json()
    assert (found["workers"], found["profile"], found["points"]) == (3, "anwar-2021", 113)
    assert [each["workers"] for each in found["candidates"]] == [3, 4, 2], "one machine cannot do that batch"
    cheap = ask("batch=64000&latency_ms=0&beta=200&usd_per_hour=1").json()
    assert cheap["workers"] == 3
    assert ask("batch=64000&latency_ms=0&usd_per_hour=1&max_usd_per_hour=2.5").json()["workers"] == 2
    assert ask("batch=64000&latency_ms=0&usd_per_hour=9&max_usd_per_hour=2.5").status_code == 422
    only_one = ask("batch=64000&latency_ms=0&usd_per_hour=0.0928&max_usd_per_hour=0.1")
    assert (only_one.status_code, "$0.1856" in only_one.text) == (422, True), "what failed is not proposed"
    third = ask("batch=64000&latency_ms=0&usd_per_hour=0.1&max_usd_per_hour=0.3").json()
    assert (third["machines"], third["usd_per_hour"]) == (3, 0.3), "3 x 0.1 is 0.3"
    project = ask("batch=64000&latency_ms=0&usd_per_hour=0.0928&max_usd=0.04").json()
    assert (project["machines"], round(project["usd"], 4)) == (3, 0.0389)
    assert (found["usd"], found["usd_per_hour"]) == (None, None), "no price is known"
    for dollars in ("max_usd=1", "max_usd_per_hour=1", "beta=2"):
        unknown = ask(f"batch=64000&latency_ms=0&{dollars}")
        assert (unknown.status_code, "Give usd_per_hour" in unknown.text) == (422, True)
    each = ask(
        "batch=64000&latency_ms=0&usd_per_hour=1&usd_per_hour=2&usd_per_hour=7&max_usd_per_hour=9"
    ).json()
    assert (each["machines"], each["usd_per_hour"]) == (2, 3), "1 + 2 + 7 are more than 9"
    literal = ask("batch=1280&latency_ms=100&rule=lookup").json()
    assert (literal["machines"], literal["seconds"], literal["rule"]) == (2, 63, "lookup")
    assert [(o["rule"], o["machines"]) for o in literal["others"]] == [("carried", 1), ("model", 1)]
    wrong = ask("batch=70&latency_ms=20&rule=lookup")
    assert (wrong.status_code, "batch 192 at 20 ms" in wrong.text) == (404, True)
    assert ask("batch=64000&rule=beauty").status_code == 422
    own = {"batch": 64, "latency_ms": 5, "rule": "lookup", "table": TABLE}
    answer = served.ask("red-read", "POST", "/api/v1/recommend", json=own).json()
    assert (answer["machines"], answer["seconds"], answer["profile"]) == (2, 30, "table")
    damaged = served.ask("red-read", "POST", "/api/v1/recommend", json={**own, "table": "workers\n1\n"})
    assert (damaged.status_code, "batch_size" in damaged.text) == (422, True)
    for workers, time_s in ((1, 0.02), (2, 0.2), (3, 0.3)):
        shape = {"nodes": workers, "local_batch": 64 / workers, "step_time_s": time_s}
        data = Measurement(Point(Strategy.ALLREDUCE, workers, **shape)).to_json()
        new = NewMeasurement(f"m-{workers}", "f", "s", "main", "job-red", data, float(workers))
        served.service.database.add_measurement(new)
    later = NewMeasurement(
        "m-0", "f", "s", "main", "job-red", '{"point": {"way": "of a later version"}}', 4.0
    )
    served.service.database.add_measurement(later)
    mine = ask("batch=64&profile=job-red").json()
    assert (mine["workers"], mine["points"]) == (1, 3), "this job does not scale"
    unknown = ask("batch=64&profile=job-red&latency_ms=0")
    told = {each["workers"]: each["is_measured"] for each in unknown.json()["candidates"]}
    assert told == {1: True, 2: False, 3: False}, "a latency that nobody measured is unknown, not 0"
    assert mine["candidates"][0]["low_s"] < mine["candidates"][0]["high_s"]
    large = Point(Strategy.ALLREDUCE, 4, nodes=4, local_batch=64, step_time_s=1.0)
    data = Measurement(large, memory_bytes=2e9, offer="t2.large").to_json()  # which has 8 GiB
    served.service.database.add_measurement(NewMeasurement("m-4", "f", "s", "main", "job-red", data, 9.0))
    wide = ask("batch=1024&profile=job-red").json()
    assert sorted(each["workers"] for each in wide["candidates"]) == [4], "as `quote` would leave them out"
    assert "1 to 3 machines are left out: of 3 each would need 8.07 GB" in wide["notes"][0]
    assert (
        ask("batch=64&profile=job-red").json()["points"],
        ask("batch=9999&profile=job-red").status_code,
    ) == (1, 422)
    assert ask("batch=64&profile=job-red", "blue-read").status_code == 404
    assert ask("batch=64&profile=job-blue", "blue-read").status_code == 404, "nothing was measured of it"
    assert ask("latency_ms=0").status_code == 422
    page = served.ask("red-read", "GET", "/recommend?batch=64000&latency_ms=20")
    assert "Take <strong>3</strong> machines" in page.text
    assert served.ask("red-read", "GET", "/recommend?batch=x").status_code == 422


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": "1e308"}, "epochs: found 1e+308"),
        ({"usd_per_hour": "1e308"}, "usd_per_hour: found 1e+308"),
        ({"batch": "1e9"}, "does not fit: "),
        ({"table": f"{TABLE}8,64,5,1e308\n"}, "time_per_epoch_s: found &#39;1e308&#39;"),
        ({"table": f"{TABLE}8,64,5,{'9' * 140_000}\n"}, "is no CSV"),
    ],
    ids=["epochs", "price", "batch", "time", "cell"],
)
def test_what_no_number_holds_is_refused_by_rest_and_on_the_page(served, wrong, said):
    asked = {"batch": "64", "latency_ms": "5", "table": TABLE, **wrong}
    prices = {key: [asked[key]] for key in asked if key.startswith("usd")}
    answers = (
        served.ask("red-read", "POST", "/api/v1/recommend", json={**asked, **prices}),
        served.ask("red-read", "POST", "/recommend", files={key: (None, asked[key]) for key in asked}),
    )
    for answer in answers:
        assert answer.status_code == 422
        assert said.replace("&#39;", "'") in answer.text.replace("&#39;", "'")


def test_the_page_of_the_recommender_takes_an_empty_field_as_one_that_was_left_out(served):
    table = "workers,batch_size,latency_ms,time_per_epoch_s\n2,64,5,30\n4,64,5,40\n"
    asked = {
        "batch": (None, "64"),
        "latency_ms": (None, ""),
        "rule": (None, "lookup"),
        "table": (None, table),
    }
    page = served.ask("red-read", "POST", "/recommend", files=asked)
    assert "Take <strong>2</strong> machines" in page.text, "at the latency of the table, as by REST"
    assert "30 s to" not in page.text, "of a row there is no interval of the model"
    assert "max_workers: found" in served.ask("red-read", "GET", "/recommend?max_workers=some").text
    unknown = served.ask("red-read", "GET", "/recommend?profile=job-of-nobody")
    assert (unknown.status_code, "trainmaster status" in unknown.text) == (422, False)


def test_what_one_has_measured_is_taken_by_a_quote_on_the_page(served):
    cluster = "workers: 1..6, hardware: {ps: {instance: m4.large}}}"
    text = f"objective: scala-opt\n{QUOTED}".replace("workers: 4}", cluster)
    traffic = {"bandwidth": "instance,mbps\r\np2.xlarge,200\r\nt2.xlarge,140\r\n"}
    filled = {"recipe": text, "catalogue": "fc2-2018", **traffic}
    asked = served.ask("red-user", "POST", "/new/quote", data=filled)
    place = asked.headers["location"]
    database = served.service.database
    served.state.quotes.work("page", quote_requests.claim(database, "page", database.clock_s(), 60.0))
    assert "2 x p2.xlarge + 1 x m4.large" in served.ask("red-user", "GET", place).text
    assert "t2.xlarge,140" in served.ask("red-user", "GET", f"{place}/change").text, "for the next question"


def test_half_a_surrogate_pair_and_a_number_of_5000_digits_are_mistakes(served):
    half = QUOTED.replace("job", "\ud800")
    for path in ("quotes", "plans", "runs", "recipes/check", "workflows"):
        sent = {"content": json.dumps({"recipe": half}), "headers": {"content-type": "application/json"}}
        answer = served.ask("red-user", "POST", f"/api/v1/{path}", **sent)
        assert (answer.status_code, answer.json()["mistakes"][0]["key"]) == (422, "body.recipe")
    was = json.dumps({"steps": "1000"})
    filled = {"recipe": QUOTED, "was": was, "policy": "scala-opt", "p": "9" * 5000}
    page = served.ask("red-user", "POST", "/new/quote", data=filled)
    assert (page.status_code, "objective: Exceeds the limit" in page.text) == (422, True)


@pytest.mark.parametrize("most", [0, 65_537, 10**9])
def test_no_quote_looks_at_more_workers_than_a_recipe_may_have(served, most):
    body = {"recipe": QUOTED.replace("workers: 4", "workers: auto"), "policy": "cost-opt"}
    asked = served.ask("red-user", "POST", "/api/v1/quotes", json={**body, "max_workers": most})
    assert asked.status_code == 422
    page = served.ask("red-user", "POST", "/new/quote", data={**body, "most_workers": str(most)})
    assert (page.status_code, "from 1 to 65536" in page.text) == (422, True)


def test_a_quote_is_asked_for_looked_at_and_streamed(served):
    body = {"recipe": QUOTED, "policy": "cost-opt", "catalogue": "fc2-2018"}
    asked = served.ask("red-user", "POST", "/api/v1/quotes", json=body)
    assert asked.status_code == 202, asked.text
    place = asked.headers["location"]
    assert served.ask("red-read", "GET", place).json() == asked.json()
    for who, method, path in (
        ("blue-user", "GET", place),
        ("blue-user", "GET", f"{place}/stream"),
        ("blue-user", "DELETE", place),
        ("red-user", "GET", place.replace("/quotes/", "/plans/")),
    ):
        assert served.ask(who, method, path).status_code == 404
    database = served.service.database
    served.state.quotes.work("w", quote_requests.claim(database, "w", database.clock_s(), 60.0))
    found = served.ask("red-read", "GET", place).json()
    assert (found["state"], found["answer"]["policy"]) == ("DONE", "cost-opt")
    stream = served.ask("red-read", "GET", f"{place}/stream").text
    assert json.loads(stream.partition("event: done\ndata: ")[2]) == found
    line, *_ = served.ask("red-read", "GET", "/api/v1/quotes").json()["quotes"]
    assert (line["id"], line["name"], line["asked_by"]) == (found["id"], "job", "u")
    assert (line["time_s"], line["state"]) == (found["answer"]["total"]["time_s"], "DONE")
    page = served.ask("red-read", "GET", "/quotes").text
    assert f'<a href="/quotes/{found["id"]}">' in page
    for at in ("/quotes", "/api/v1/quotes"):
        assert found["id"] not in served.ask("blue-user", "GET", at).text
    assert found["id"] in served.ask("admin", "GET", "/api/v1/quotes").text
    long_ago = database.clock_s() - 8 * 86400.0
    with database.engine.begin() as connection:
        connection.execute(tables.quote_request.update().values(created_at=long_ago, ended_at=long_ago))
    assert found["id"] not in served.ask("red-read", "GET", "/api/v1/quotes").text, "within a week"
    for _ in range(3):
        served.ask("red-user", "POST", "/api/v1/plans", json={"recipe": QUOTED})
    answer = served.ask("red-user", "POST", "/api/v1/quotes", json=body)
    assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
    unknown = served.ask("red-user", "POST", "/api/v1/quotes", json={**body, "polizy": "x"})
    assert unknown.status_code == 422


def test_a_plan_is_accepted_once(served):
    service, state = served.service, served.state
    asked = state.quotes.send(caller("owner", None, ["run"]), "plan", QuoteAsk(QUOTED))["id"]
    end = functools.partial(quote_requests.end, service.database, quote_requests.named(asked), 1e12)
    assert served.ask("owner", "POST", "/api/v1/runs", json={"plan": asked}).status_code == 422
    end(answer=json.dumps({"id": asked, "most_usd_per_hour": 0.001}), error=None)
    answer = served.ask("owner", "POST", "/api/v1/runs", json={"plan": asked, "recipe": QUOTED})
    assert (answer.status_code, "a recipe or a plan" in answer.text) == (422, True)
    assert served.ask("blue-user", "POST", "/api/v1/runs", json={"plan": asked}).status_code == 404


def test_a_file_on_a_store_with_links_is_had_there(served, monkeypatch):
    (file,) = served.ask("red-read", "GET", "/api/v1/models/job-red/main/0").json()["files"]
    path = f"/api/v1/models/job-red/main/0/files/{file['path']}"
    assert served.ask("red-read", "GET", path).status_code == 200, "a directory has no links"
    monkeypatch.setattr(ModelFiles, "link", lambda *_: "https://store.example/x?signed")
    answer = served.ask("red-read", "GET", path)
    assert (answer.status_code, answer.headers["location"]) == (302, "https://store.example/x?signed")
    assert served.ask("red-read", "GET", f"{path}?redirect=false").text == "weights"
    assert served.ask("blue-read", "GET", path).status_code == 404


def test_who_asks_with_wait_s_is_answered_when_there_is_news(served):
    body = {"recipe": QUOTED, "policy": "cost-opt", "catalogue": "fc2-2018"}
    place = served.ask("blue-user", "POST", "/api/v1/quotes?wait_s=0.01", json=body).headers["location"]
    found = []

    def work():
        until(lambda: served.state.quotes.listeners._calls, "the server waits with its answer", 60)
        for number in itertools.count():
            now = served.service.database.clock_s()
            row = quote_requests.claim(served.service.database, f"w-{number}", now, 60.0)
            if row is None:
                return
            served.state.quotes.work(f"w-{number}", row)
            served.state.quotes.listeners.tell(row["id"])
            found.append(row["id"])

    working = threading.Thread(target=work)
    working.start()
    answer = served.ask("blue-read", "GET", f"{place}?wait_s=30").json()
    working.join(60)
    assert answer["state"] == "DONE"
    assert answer["id"] in found
    assert served.ask("blue-read", "GET", f"{place}?wait_s=31").status_code == 422


def test_no_plan_keeps_machines_warm_that_its_run_might_not(served):
    """They would cost when the run is over, and are in no budget: `POST /runs` refuses it, too."""

    def ask(who):
        return served.ask(who, "POST", "/api/v1/plans", json={"recipe": QUOTED, "keep_s": 600})

    assert ask("owner").status_code == 202
    refused = ask("red-user")
    assert (refused.status_code, "(`--keep`, by REST `keep_s`): team red has limits" in refused.text) == (
        422,
        True,
    )
