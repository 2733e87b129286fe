"""TensorBoard as its users meet it: in a browser, by one click on the page of a run."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request

import pytest
from learning import needs
from running_server import RunningServer

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
RECIPE = "name: job\nexperiments:\n  main: {command: python train.py}\n"
SCRIPT = """\
import json, os
with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
    for step in range(1, 31):
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
"""


def status_of(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.timeout(600)
@pytest.mark.browser
def test_tensorboard_is_one_click_away_and_outlives_the_server(tm):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    needs("playwright", "tensorboard")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    token = tm.call("token", "create", "ci", "--scopes", "read,run", "--json").json["token"]
    server = RunningServer(tm.start, token)
    server.start()
    run = server.send(SCRIPT, {"recipe": RECIPE, "provider": None})[1]["run"]
    tm.until(lambda: server.ask("GET", f"/runs/{run}")[1]["state"] == "DONE", "the run is over")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(server.setup_url)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="New run").wait_for()
        page.goto(f"{server.url}/runs/{run}")
        page.get_by_role("button", name="TensorBoard").click()
        page.get_by_text(f"{run}/main/0").first.wait_for()  # in TensorBoard's list
        assert not any(cookie["name"] == "trainmaster-app" for cookie in page.context.cookies(server.url))
        address = page.url.partition("#")[0].partition("?")[0]
        browser.close()
    (app,) = server.ask("GET", "/apps")[1]["apps"]
    assert (app["state"], app["runs"]) == ("RUNNING", [run])
    authorization = f"Bearer {token}"
    assert status_of(address) == 401
    assert status_of(address + "data/runs", authorization=authorization) == 200
    server.process.kill()
    server.start()
    assert server.ask("GET", f"/apps/{app['app']}")[1]["state"] == "RUNNING"
    assert tm.call("apps", "--json").json["apps"][0]["app"] == app["app"]
    tm.call("apps", "end", app["app"])
    tm.until(lambda: server.ask("GET", f"/apps/{app['app']}")[1]["state"] == "DONE", "it is over")
