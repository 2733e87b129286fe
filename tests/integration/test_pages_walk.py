"""A layman on a phone: from the log-in over a wheel, data, a budget and a first quote to the model's zip.

Part of `make pages`. The connection is cut twice, the server is killed while the run goes on, and what
another team's member asks for meanwhile is not there.
"""

from __future__ import annotations

import json
import os
import urllib.error
import zipfile
from pathlib import Path

import pytest
from learning import needs
from running_server import RunningServer
from test_pages_rules import IS_ALL, SIZES, browser

from conftest import until

__all__ = ["browser"]
STEPS = 80
SCRIPT = f"""\
import json, os, pathlib, time
(data,) = pathlib.Path(os.environ["TRAINMASTER_DATA_DATA"]).iterdir()
size = data.stat().st_size
for step in range(1, {STEPS} + 1):
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({{"step": step, "loss": 1 / step}}) + "\\n")
    print(f"step {{step}} of {{size}} bytes", flush=True)
    time.sleep(0.25)
pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "weights.txt").write_text(str(size))
"""
SIZE = 50_000_000
API = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())["paths"]


def wheel(directory):
    path = directory / "line-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.py", SCRIPT)
        archive.writestr("line-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: line\nVersion: 1.0\n")
        archive.writestr(
            "line-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("line-1.0.dist-info/RECORD", "")
    return path


def seen_by_another(server, token, **names):
    """Of every route and page that has one of these names in its path: those that do not say 404."""
    other, found = RunningServer(server.begin, token), {}
    other.url = server.url
    names = {**names, "experiment": "train", "task": "0", "path": "weights.txt", "version": "1"}
    pages = [
        f"/runs/{names['run']}{part}" for part in ("", "/tasks", "/logs", "/machines", "/history", "/again")
    ]
    pages += [f"/quotes/{names['quote']}", f"/models/{names['run']}/train/0"]
    wanted = [("GET", page) for page in pages]
    for path, methods in API.items():
        inside = {part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")}
        if inside & {"run", "quote", "upload"} and inside <= set(names):
            at = path.format(**names) if "/api/v1" in path else "/api/v1" + path.format(**names)
            wanted += [(method.upper(), at) for method in methods if method in ("get", "delete")]
    assert len(wanted) > 25
    for method, path in wanted:
        try:
            with other.open(method, path) as answer:
                found[method, path] = answer.status
        except urllib.error.HTTPError as error:
            if error.code != 404:
                found[method, path] = error.code
    return found


@pytest.mark.skipif(not IS_ALL, reason="part of `make pages`")
@pytest.mark.timeout(900)
@pytest.mark.browser
def test_a_layman_on_a_phone_from_the_log_in_to_the_model_s_zip(tm, browser, tmp_path):
    needs("pyarrow")
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    owner = tm.call("token", "create", "owner", "--scopes", "read,run", "--json").json["token"]
    server = RunningServer(tm.start, owner)
    server.start()
    data = tmp_path / "photos.bin"
    data.write_bytes(os.urandom(SIZE))
    width, height = SIZES["phone"]
    page = browser.new_context(viewport={"width": width, "height": height}, has_touch=True).new_page()
    page.set_default_timeout(120_000)
    page.goto(server.setup_url)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()

    page.goto(server.url + "/volumes")
    pieces = []

    def cut(route):
        if route.request.method != "PATCH":
            return route.continue_()
        pieces.append(int(route.request.headers["upload-offset"]))
        return route.abort() if len(pieces) in (3, 5) else route.continue_()

    page.route("**/api/v1/uploads/*", cut)
    page.get_by_label("Volume").fill("photos")
    page.get_by_label("Files").set_input_files(data)
    page.get_by_role("button", name="Send").click()
    page.wait_for_url("**/volumes/photos")
    assert pieces.count(0) == 1, "nothing that was there is sent again"
    page.unroute_all()

    page.goto(server.url + "/new")
    page.get_by_label("Name of the runs").fill("line")
    page.locator("#file").set_input_files(wheel(tmp_path))
    page.get_by_text("line-1.0-py3-none-any.whl is sent.").wait_for()
    page.get_by_role("tab", name="Data").click()
    page.locator("[name=data]").select_option("volume")
    page.locator("[name=source]").fill("photos")
    page.get_by_role("tab", name="Resource").click()
    page.locator("[name=provider]").select_option("local")
    page.locator("[name=budget]").fill("0.50")
    page.get_by_role("tab", name="Model").click()
    page.locator("[name=steps]").fill(str(STEPS))
    page.get_by_role("tab", name="Recipe").click()
    recipe = page.locator("#recipe")
    until(lambda: f"steps: {STEPS}" in recipe.input_value(), "the recipe is written", 240)
    assert "0.50" in recipe.input_value()
    assert "train.py" in recipe.input_value(), "what the wheel has is the main script"
    page.get_by_role("button", name="Quote it first").click()
    goes_on = page.locator(".quote-go").get_by_role("link")
    goes_on.wait_for()
    quote = page.url.rpartition("/")[2]
    assert "About" in page.locator("main").inner_text()
    goes_on.click()
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/runs/line-*")
    run = page.url.rpartition("/")[2]
    page.locator(".chart canvas").first.wait_for()
    tm.call("team", "create", "other", code=0)
    theirs = tm.call("token", "create", "other", "--team", "other", "--scopes", "read,run", "--json").json[
        "token"
    ]
    assert seen_by_another(server, theirs, run=run, quote=quote, upload="0" * 32) == {}

    server.process.kill()
    page.get_by_text("The connection is lost").wait_for()
    server.start()
    page.locator("#part .state", has_text="succeeded").first.wait_for()
    shown = page.evaluate("[...charts.chart('loss').series.values()].map(each => each.xs)")
    assert shown == [list(range(1, STEPS + 1))], "no gap, and nothing twice"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").first.click()
    with zipfile.ZipFile(download.value.path()) as model:
        (name,) = [each for each in model.namelist() if each.endswith("weights.txt")]
        assert model.read(name).decode() == str(SIZE)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert seen_by_another(server, theirs, run=run, quote=quote, upload="0" * 32) == {}
    page.context.close()
