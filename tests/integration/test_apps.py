"""TensorBoard as its users meet it: in a browser, by one click on the page of a run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from learning import needs
from running_server import RunningServer

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
def test_tensorboard_is_one_click_away_and_outlives_the_server(tm, browser):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    needs("tensorboard")
    token = tm.call("token", "create", "ci", "--scopes", "read,run", "--json").json["token"]
    server = RunningServer(tm.start, token)
    server.start()
    run = server.send(SCRIPT, {"recipe": RECIPE, "provider": None})[1]["run"]
    tm.until(lambda: server.ask("GET", f"/runs/{run}")[1]["state"] == "DONE", "the run is over")
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
    page.close()
    (app,) = server.ask("GET", "/apps")[1]["apps"]
    assert (app["state"], app["runs"]) == ("RUNNING", [run])
    authorization = f"Bearer {token}"
    assert status_of(address) == 401
    assert status_of(address + "data/runs", authorization=authorization) == 200
    server.process.kill()
    server.start()
    assert server.ask("GET", f"/apps/{app['app']}")[1]["state"] == "RUNNING"
    assert tm.call("apps", "--json").json["apps"][0]["app"] == app["app"]
    assert tm.call("apps", "end", app["app"]).err == f"{app['app']} ends\n"
    tm.until(lambda: server.ask("GET", f"/apps/{app['app']}")[1]["state"] == "DONE", "it is over")
    assert tm.call("apps", "end", app["app"]).err == f"{app['app']} is over already\n"


def path_with_jupyter():
    """JupyterLab is too large for the environment of the tests: `make notebook` makes it one of its own."""
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.prefix) / "notebook" / "bin")])
    if shutil.which("jupyter-lab", path=path) is None:
        pytest.skip("there is no jupyter-lab: `make notebook` installs one")
    return path


@pytest.mark.timeout(600)
@pytest.mark.browser
def test_a_kernel_of_a_notebook_answers_in_the_browser(tm, browser):
    needs("h11")
    path = path_with_jupyter()
    tm.write("train.py", SCRIPT)
    run = tm.run(tm.recipe(RECIPE))["run"]
    notebook = tm.start("notebook", run, env=tm.env | {"PATH": path})
    notebook.until(lambda: "http" in notebook.out, "it answers")
    address = next(line for line in notebook.out.splitlines() if line.startswith("http"))
    page = browser.new_page()
    page.set_default_timeout(300_000)
    page.goto(address)
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    page.get_by_text("| Idle").first.wait_for()  # the kernel is there
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    page.keyboard.type("import os, trainmaster; print('answer', 6 * 7, sorted(os.listdir()))")
    page.keyboard.press("Shift+Enter")
    page.get_by_text("answer 42").first.wait_for()
    assert "'code'" in page.locator(".jp-OutputArea-output").first.inner_text()
    page.close()
    notebook.send(signal.SIGINT)
    notebook.wait()
    assert tm.call("apps", "--json").json["apps"][0]["state"] != "WAITING"
