"""`trainmaster server` as its users meet it: over TCP, killed, in a browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
from pathlib import Path

import pytest
from learning import needs
from running_server import RunningServer

from trainmaster.spec import Recipe
from trainmaster.testing import line_fit
from trainmaster.testing.waits import until

SCRIPT = """\
import json, os, time
for step in range(1, 31):
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    print("step", step, flush=True)
    while step == 10 and not os.path.exists(os.environ["NOTES"] + "/go"):
        time.sleep(0.02)
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model.txt", "w") as file:
    file.write("weights")
"""
RECIPE = "name: job\nexperiments:\n  main: {command: python train.py}\n"
WORKFLOW = "name: nightly\nexperiments:\n  main: {command: echo nightly}\non: [webhook]\n"
SERVICE = """
name: served
experiments:
  api: {command: 'exec python -m http.server --bind 127.0.0.1 {{port}}', serve: {health: /, start: 120s}}
"""
RENTED = """
name: rented
provider: aws
experiments:
  main:
    command: python train.py
    steps: 1000
    batch: {global: 64}
    distributed: {strategy: ps-async, workers: 4}
"""


class Server(RunningServer):
    """A server of a user's home, and runs of the script above."""

    def send(self, script=SCRIPT, **headers):
        return super().send(script, {"recipe": RECIPE, "provider": None}, **headers)

    def follow(self, run, until, last=""):
        """Server-sent events until one satisfies `until`: kind, data and id of each."""
        found = []
        with self.open(
            "GET", f"/api/v1/runs/{run}/stream", **({"Last_Event_ID": last} if last else {})
        ) as stream:
            event = {}
            for line in stream:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    event[name] = value
                elif "data" in event:
                    found.append((event["event"], json.loads(event["data"]), event["id"]))
                    event = {}
                    if until(*found[-1][:2]):
                        return found
        raise AssertionError(f"the stream has ended after {found[-3:]}")


@pytest.fixture
def server(tm):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    found = Server(tm.start, tm.call("token", "create", "ci", "--scopes", "read,run", "--json").json["token"])
    found.start()
    return found


def steps(found):
    return [row["step"] for kind, data, _ in found if kind == "point" for row in data["points"]]


def text(found):
    return "".join(data["text"] for kind, data, _ in found if kind == "log")


def is_over(kind, data):
    return kind == "state" and data["run"]["state"] == "DONE"


LOG = "".join(f"step {step}\n" for step in range(1, 31))


def test_a_run_is_sent_once_followed_without_a_gap_and_its_model_fetched(server, tm):
    status, sent = server.send(Idempotency_Key="k")
    again, same = server.send(Idempotency_Key="k")
    assert (status, again, same["run"]) == (201, 200, sent["run"])
    with pytest.raises(urllib.error.HTTPError, match="409"):
        server.ask("POST", "/runs", {"recipe": RECIPE}, Idempotency_Key="k")
    run = sent["run"]
    first = server.follow(run, lambda kind, data: kind == "log" and "step 10" in data["text"])
    (tm.notes / "go").touch()
    rest = server.follow(run, is_over, last=first[-1][2])
    assert steps(first + rest) == list(range(1, 31))
    assert text(first + rest) == LOG
    assert text(server.follow(run, is_over)) == LOG, "a client that comes later is told all of it"
    _, status = server.ask("GET", f"/runs/{run}")
    assert status["reason"] == "SUCCEEDED"
    assert tm.status(run)["models"] == status["models"], "the same object"
    (curve,) = server.ask("GET", f"/runs/{run}/metrics?keys=loss&points=6")[1]["metrics"]
    assert (len(curve["steps"]) <= 6, curve["steps"][0], curve["steps"][-1]) == (True, 1, 30)
    with server.open("GET", f"/api/v1/models/{run}/main/0/files/model.txt") as answer:
        assert answer.read() == b"weights"
    assert [found["run"] for found in server.ask("GET", "/runs")[1]["runs"]] == [run]
    server.process.send(signal.SIGTERM)
    server.process.wait(0, timeout_s=20)


def test_runs_go_on_whatever_becomes_of_the_server(server, tm):
    run = server.send()[1]["run"]
    first = server.follow(run, lambda kind, data: kind == "log" and "step 10" in data["text"])
    driver = server.ask("GET", f"/runs/{run}")[1]["driver"]["pid"]
    server.process.kill()  # and the driver: nobody is left, and the next server takes the run over
    os.kill(driver, signal.SIGKILL)
    server.start()
    tm.until(lambda: server.ask("GET", f"/runs/{run}")[1]["driver"], "somebody drives it again")
    (tm.notes / "go").touch()
    rest = server.follow(run, is_over, last=first[-1][2])
    assert steps(first + rest) == list(range(1, 31))
    assert text(first + rest) == LOG
    assert tm.status(run)["reason"] == "SUCCEEDED"


def test_a_run_is_ended_from_afar(server, tm):
    run = server.send("import time\ntime.sleep(1000)\n")[1]["run"]
    tm.until(lambda: server.ask("GET", f"/runs/{run}")[1]["experiments"]["main"]["tasks"]["running"])
    server.ask("POST", f"/runs/{run}/cancel")
    tm.until(lambda: server.ask("GET", f"/runs/{run}")[1]["reason"] == "CANCELLED")


def test_it_does_not_listen_in_clear_and_says_why_it_cannot_listen(tm):
    assert "in clear" in tm.call("server", "--host", "0.0.0.0", code=2).err
    assert "belong together" in tm.call("server", "--tls-cert", "x", code=2).err
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert "cannot listen" in tm.call("server", "--port", other.getsockname()[1], code=2).err


SIZES = {"phone": (390, 844), "desk": (1280, 800)}


@pytest.fixture
def browser(browser):
    """The one of this module, without the pages of other tests: they would ask servers that are gone."""
    yield browser
    for context in browser.contexts:
        context.close()


@pytest.mark.browser
def test_an_upload_from_a_phone_outlives_the_server(server, tm, browser, tmp_path):
    """The server is killed while the third piece is on its way; the page goes on where the next one is."""
    needs("pyarrow")
    table = tmp_path / "<b>train.csv"
    table.write_text("x,label\n" + "0.25,cat\n" * 1_000_000)
    width, height = SIZES["phone"]
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    page.set_default_timeout(120_000)
    page.goto(server.setup_url)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()
    page.goto(server.url + "/volumes")
    pieces = []

    def sent(route):
        if route.request.method == "PATCH":
            pieces.append(int(route.request.headers["upload-offset"]))
            if len(pieces) == 3:
                server.process.kill()
        route.continue_()

    page.route("**/api/v1/uploads/*", sent)
    page.get_by_label("Volume").fill("pets")
    page.get_by_label("Files").set_input_files(table)
    page.get_by_role("button", name="Send").click()
    page.get_by_text("The connection is lost").wait_for()
    server.start()
    page.wait_for_url("**/volumes/pets")
    page.get_by_text("1,000,000 rows, 2 columns").wait_for()
    assert pieces[2] > 0
    assert pieces.count(0) == 1, "nothing that was there is sent again"
    check_page(page, "/volumes/pets", width)
    page.get_by_role("button", name="Remove version 1").click()
    question = page.locator("dialog")
    assert "Remove version 1 of pets? Recipes that name it do not run any more" in question.inner_text()
    question.get_by_role("button", name="Yes: remove version 1").click()
    page.get_by_text("No volumes yet").wait_for()


@pytest.mark.browser
def test_what_is_filled_in_is_in_the_recipe_and_never_lost(server, browser):
    """Fields and recipe are one document; who presses a button is answered, offline and logged out, too."""
    width, height = SIZES["phone"]
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.goto(server.url + "/login")
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()
    page.goto(server.url + "/new")
    page.get_by_label("Main script").fill("first.py")
    page.get_by_label("Name of the runs").fill("at-once")
    page.get_by_role("button", name="Quote it first").click()  # sooner than they are written into the recipe
    page.wait_for_url("**/quotes/*")
    page.get_by_role("link", name="Back to the recipe").click()
    recipe = page.locator("#recipe")
    assert "name: at-once" in recipe.input_value()
    assert "python first.py" in recipe.input_value()

    pasted = "# 2\nname: pasted\nexperiments:\n  a: {command: python a.py, retries: 2}\n  b: {command: ls}\n"
    page.get_by_role("tab", name="Recipe").click()
    recipe.fill(pasted)
    recipe.fill("name: b\nexperiments: {a: {command: ls, checkpoint: {from: nosuch}}}\n")
    page.locator("[name=budget]").fill("5")
    page.get_by_role("button", name="Run it").click()
    page.get_by_text("Not sent: the recipe says what is wrong.").wait_for()
    page.wait_for_timeout(1000)  # a field that the press has left was written into the recipe after 250 ms
    assert "there is no run 'nosuch'" in page.locator("#checked").inner_text()
    page.locator("[name=budget]").fill("")
    recipe.fill(pasted)
    page.get_by_role("tab", name="Code").click()
    main = page.get_by_label("Main script")
    until(lambda: main.input_value() == "a.py", "fields say what the recipe says", 60)
    page.get_by_role("tab", name="Resource").click()
    page.locator("[name=deadline]").fill("9h")
    page.locator("[name=deadline]").blur()
    longer = pasted.replace("pasted\n", 'pasted\nbudget: {deadline: "9h"}\n')
    until(lambda: recipe.input_value() == longer, "one key is changed", 60)

    page.goto(server.url + "/new")
    name = page.get_by_label("Name of the runs")
    assert name.input_value() == "pasted", "it was not sent: it is back"
    with page.expect_navigation():
        page.get_by_text("Start over").click()
    assert name.input_value() == "run"
    name.fill("kept")
    page.goto(server.url + "/examples")
    page.go_back()
    assert name.input_value() == "kept"
    until(lambda: "name: kept" in recipe.input_value(), "the recipe, too", 60)
    page.reload()
    assert name.input_value() == "kept"

    said = page.locator("#said")
    context.set_offline(True)
    page.get_by_role("button", name="Quote it first").click()
    assert said.inner_text(), "at once"
    said.get_by_text("cannot be reached").wait_for()
    check_page(page, "/new, offline", width)
    context.set_offline(False)
    page.wait_for_url("**/quotes/*")
    page.go_back()
    assert name.input_value() == "kept"
    context.clear_cookies()
    page.get_by_role("button", name="Quote it first").click()
    said.get_by_role("link", name="Log in").click()
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/quotes/*")
    page.get_by_role("link", name="Back to the recipe").click()
    assert "name: kept" in recipe.input_value()
    _scala_opt(page, server, width)


def _scala_opt(page, server, width):
    """FC2's policy with its lists and numbers, as they are filled in: traffic that it lacks has a button."""
    page.goto(server.url + "/new")
    page.get_by_role("tab", name="Resource").click()
    page.locator("[name=provider]").select_option("aws")
    page.locator("[name=policy]").select_option("scala-opt")
    page.locator("[name=catalogue]").select_option("fc2-2018")
    for label, value in (
        ("Worker types", "c4.xlarge, p2.xlarge"),
        ("Types of parameter servers", "m4.large, m4.2xlarge"),
        ("Most workers in the quote", "6"),
        ("Budget per hour, US dollars", "2"),
        ("p of Scala-Opt: share of the servers' network", "0.8"),
    ):
        page.get_by_label(label).fill(value)
    check_page(page, "/new, Resource", width)
    page.get_by_role("tab", name="Model").click()
    page.get_by_label("Batch, of all workers").fill("64")
    page.get_by_label("Steps").fill("1000")
    page.get_by_role("tab", name="Recipe").click()
    until(lambda: "steps: 1000" in page.locator("#recipe").input_value(), "the recipe is written", 60)
    recipe = Recipe.from_text(page.locator("#recipe").input_value())
    assert (recipe.objective.policy, recipe.objective.p, recipe.budget.usd_per_hour) == ("scala-opt", 0.8, 2)
    train = recipe.experiments["train"]
    servers = train.distributed.hardware["ps"].instance
    assert (train.hardware.instance, servers) == (("c4.xlarge", "p2.xlarge"), ("m4.large", "m4.2xlarge"))
    page.get_by_role("button", name="Quote it first").click()
    page.wait_for_url("**/quotes/*")
    measures = page.get_by_role("button", name="Measure first: c4.xlarge, p2.xlarge: 2 min each")
    measures.wait_for()
    check_page(page, "/quotes/NAME without traffic", width)
    most = page.locator("[name=max_usd]").input_value()
    assert measures.inner_text().endswith(f"at most ${most}"), "what is agreed to is what is shown"
    page.get_by_role("link", name="Back to the recipe").click()
    page.wait_for_url("**/change")
    assert Recipe.from_text(page.locator("#recipe").input_value()).objective == recipe.objective


@pytest.mark.timeout(900)
@pytest.mark.browser
def test_a_phone_uploads_has_quoted_trains_and_deploys_and_the_model_is_asked_by_curl(
    server, browser, tmp_path
):
    """Nothing needs a command line but the last request, which is what the page shows."""
    needs("pyarrow")
    (tmp_path / "points.csv").write_text(line_fit.POINTS)
    (tmp_path / "train.py").write_text(line_fit.SCRIPT)
    width, height = SIZES["phone"]
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    page.set_default_timeout(240_000)
    page.goto(server.setup_url)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()

    page.goto(server.url + "/volumes")
    page.get_by_label("Volume").fill("points")
    page.get_by_label("Files").set_input_files(tmp_path / "points.csv")
    page.get_by_role("button", name="Send").click()
    page.wait_for_url("**/volumes/points")

    page.goto(server.url + "/new")
    page.get_by_label("Name of the runs").fill("line")
    page.locator("#file").set_input_files(tmp_path / "train.py")
    page.get_by_text("train.py is sent.").wait_for()
    page.get_by_role("tab", name="Data").click()
    page.locator("[name=data]").select_option("volume")
    page.locator("[name=source]").fill("points")
    page.get_by_role("tab", name="Resource").click()
    page.locator("[name=provider]").select_option("local")
    page.get_by_role("tab", name="Recipe").click()
    until(lambda: "provider: local" in page.locator("#recipe").input_value(), "the recipe is written", 240)
    page.get_by_role("button", name="Quote it first").click()
    page.get_by_role("link", name="Go on").click()
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/runs/line-*")
    page.locator("#part .state", has_text="succeeded").first.wait_for()

    page.get_by_role("link", name="Model of train/0").click()
    page.get_by_role("link", name="Deploy").click()
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/runs/line-*")
    page.goto(server.url + "/team")
    page.get_by_label("Name of a new token").fill("phone")
    for scope in ("read", "run", "infer"):
        page.get_by_role("checkbox", name=scope, exact=True).set_checked(scope == "infer")
    page.get_by_role("button", name="Make a token").click()
    token = page.locator("pre.copy").inner_text()
    page.goto(server.url + "/services")
    page.locator("td a[href^='/services/']").click()

    def is_ready():
        page.reload()
        return page.locator("dd", has_text="ready").count()

    until(is_ready, "a replica is ready", 240)
    check_page(page, "/services/NAME", width)
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("Status 200").wait_for()
    asks = page.locator("pre.copy").inner_text()
    env = {**os.environ, "TOKEN": token}
    asked = subprocess.run(asks, shell=True, env=env, capture_output=True, text=True, check=True)
    assert json.loads(asked.stdout)["outputs"][0]["data"] == [3.0, 6.0]
    page.get_by_role("button", name="End").click()
    page.locator("dialog button.danger").click()
    page.locator("#part .state", has_text="cancelled").first.wait_for()


@pytest.mark.timeout(600)
@pytest.mark.browser
@pytest.mark.crossings  # its steps are those of `test_a_phone_uploads...`, `test_pages_*.py` and what is here
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_a_run_from_the_pages(server, tm, size, browser):
    _walk(browser, server, tm, *SIZES[size], scheme="dark" if size == "phone" else "light")


def check_page(page, path, width, *, is_asked_of_axe=True):
    """Nothing is wider than the screen, and axe-core finds nothing against WCAG 2.1 A and AA."""
    from axe_playwright_python.sync_playwright import Axe

    page.wait_for_load_state()  # before, the page may have no style yet
    assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than the screen"
    if not is_asked_of_axe:
        return
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]}).response["violations"]
    assert not found, (
        f"{path}: {[(each['help'], [node['html'] for node in each['nodes']]) for each in found]}"
    )


def _quote(server, tm):
    """One that is answered; its id."""
    wanted = {"recipe": RENTED, "policy": "cost-opt", "catalogue": "fc2-2018"}
    quote = server.ask("POST", "/quotes", wanted)[1]["id"]
    found = tm.until(lambda: (told := server.ask("GET", f"/quotes/{quote}")[1])["state"] == "DONE" and told)
    assert found["answer"], found["error"]
    return quote


def _service(server, tm):
    """One that is ready; its run, and an app that leads to a port of it."""
    run = server.ask("POST", "/runs", {"recipe": SERVICE})[1]["run"]
    tm.until(lambda: server.ask("GET", "/services/served")[1]["state"] == "READY", "the service is ready")
    app = server.ask("POST", "/apps", {"kind": "port", "runs": [run], "port": 1})[1]["app"]
    return run, app


#: 100,000 live points: a decay, a spike, a dip, and NaN in the end; how many of 300 columns are off.
CURVE = """() => {
  const count = 100000, all = new Charts(document.createElement("div")), value = i => Math.exp(-i / 30000);
  const odd = {50003: 100, 70001: -7};
  for (let i = 1; i <= count; i++) all.add("p", "a", i, i > 99000 ? null : odd[i] ?? value(i));
  const {xs, ys} = all.chart("p").series.get("a"), good = ys.filter(y => y !== null);
  const columns = Array.from({length: 297}, (_, at) => [at * count / 300, (at + 1) * count / 300]);
  const off = columns.filter(([from, to]) => {
    const its = ys.filter((y, i) => xs[i] >= from && xs[i] < to && Math.abs(y) < 2);
    return Math.abs(Math.max(...its) - value(from)) > 0.01 || Math.abs(Math.min(...its) - value(to)) > 0.01;
  }).length;
  const since = all.chart("p").since.get("a");
  return {points: xs.length, most: Math.max(...good), least: Math.min(...good), last: xs.at(-1), since, off};
}"""


def _walk(browser, server, tm, width, height, scheme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    problems = []
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.setup_url)
    check_page(page, "/setup", width)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()
    check_page(page, "/ without runs", width)
    page.get_by_role("link", name="New run").click()
    page.get_by_role("tab", name="Recipe").click()
    recipe = page.locator("#recipe")
    recipe.fill("name: web\nexperimentz: {}\n")
    page.get_by_text("did you mean 'experiments'?").wait_for()
    command = json.dumps("python - <<'END'\n" + SCRIPT + "END\n")
    recipe.fill(f"name: web\nexperiments:\n  main: {{command: {command}}}\n")
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/runs/web-*")
    page.locator("#log", has_text="step 10").wait_for()
    page.locator("canvas").first.wait_for()
    assert page.locator(".chart canvas").first.bounding_box()["y"] <= (180 if width < 641 else 200), "R4"
    drawn = page.evaluate(CURVE)
    drawn.pop("points")  # a reload has the server thin them
    assert drawn == {"most": 100, "least": -7, "last": 100_000, "since": 99_001, "off": 0}
    assert problems == []
    server.process.kill()  # the page says so, and comes back by itself
    page.get_by_text("The connection is lost").wait_for(timeout=20_000)
    (tm.notes / "go").touch()
    server.start()
    page.locator("#log", has_text="step 30").wait_for(timeout=30_000)
    page.locator("#part .state", has_text="succeeded").first.wait_for()
    problems.clear()  # what was asked of the server while it was away
    assert page.locator("#log").inner_text().count("step 7\n") == 1
    page.get_by_role("link", name="Model of main/0").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="model.txt").click()
    assert Path(download.value.path()).read_text() == "weights"
    run = page.url.split("/models/")[1].split("/")[0]
    found = page.locator("header nav a").evaluate_all("all => all.map(a => a.pathname)")
    of_navigation = dict.fromkeys(found)
    of_run = [
        f"/runs/{run}{part}" for part in ("", "/tasks", "/logs?text=step", "/machines", "/history", "/again")
    ]
    quote = _quote(server, tm)
    tm.call("models", "register", run, "net", "--alias", "staging", code=0)
    tm.call("models", "promote", "net@staging", "production", code=0)
    server.ask("POST", "/workflows", {"recipe": WORKFLOW})
    serving, app = _service(server, tm)
    page.route("**/apps/*/open", lambda route: route.fulfill(status=204))  # its page leads there by itself
    for path in (
        *of_navigation,
        *of_run,
        "/registry/net",
        "/workflows/nightly",
        "/services/served",
        f"/apps/{app}",
        f"/runs/{serving}",
        f"/quotes/{quote}",
        f"/runs/{run}/sweeps",
        f"/models/{run}/main/0",
        f"/compare?run={run}",
        "/device",
    ):
        page.goto(server.url + path)
        # On a phone the menu's pages are those of `test_pages_rules.py`: half a second of a core each.
        check_page(page, path, width, is_asked_of_axe=width > 640 or path not in of_navigation)
    page.goto(f"{server.url}/quotes/{quote}")
    goes_on = page.get_by_role("link", name="Go on")
    assert goes_on.bounding_box()["y"] + goes_on.bounding_box()["height"] <= height, "R4"
    page.goto(f"{server.url}/runs/{serving}")
    page.get_by_role("button", name="End it").click()  # asks first
    check_page(page, "the question", width)
    page.get_by_role("button", name="No, go back").click()
    assert server.ask("GET", f"/runs/{serving}")[1]["state"] == "RUNNING"
    page.get_by_role("button", name="End it").click()
    page.get_by_role("button", name="Yes: end it").click()
    tm.until(lambda: server.ask("GET", f"/runs/{serving}")[1]["reason"] == "CANCELLED")
    page.goto(server.url + "/runs")
    if width > 640:  # on a phone the bar of actions comes with the first mark
        page.get_by_role("button", name="End the marked runs").click()
        page.get_by_text("Mark runs first").wait_for()
    page.get_by_text("Menu", exact=True).click()
    check_page(page, "the menu", width)
    page.keyboard.press("Escape")
    assert not page.get_by_role("link", name="Offers").is_visible()
    assert page.locator("time[title]").count()
    page.locator(".account summary").click()
    check_page(page, "the account", width)
    page.get_by_role("button", name="Log out").click()
    page.goto(server.url + "/models")
    assert "/login" in page.url
    check_page(page, "/login", width)
    tm.call("team", "create", "vision", code=0)
    invite = tm.call("team", "invite", "vision", "--json", code=0).json["path"]
    page.goto(server.url + invite)
    check_page(page, "/join", width)
    page.get_by_label("name").fill("ann")
    page.get_by_role("button").first.click()
    page.get_by_role("heading", name="Welcome, ann").wait_for()
    check_page(page, "/join when it is done", width)
    context.clear_cookies()
    page.goto(server.url + "/login")
    assert problems == []
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Log in").click()
    page.locator(".account summary").wait_for()
    for path in ("/nothing-here", "/runs/none", "/quotes/none", "/team", "/join?code=none"):  # 404 and 403
        page.goto(server.url + path)
        check_page(page, path, width)
    context.close()
    plain = browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    page.goto(server.url + "/login")
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Log in").click()
    page.goto(server.url + "/runs")
    page.locator("td a[href^='/runs/web-']").wait_for()  # lists work without JavaScript
    plain.close()
