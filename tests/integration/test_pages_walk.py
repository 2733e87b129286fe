"""A layman on a phone: from the log-in over a wheel, data, a budget and a first quote to the model's zip.

Part of `make pages`. The connection is cut twice, the server is killed while the run goes on, and what
another team's member asks for meanwhile is not there.
"""

from __future__ import annotations

import os
import zipfile

import pytest
from layman import STEPS, runs_what_is_quoted, seen_by_another, sends_and_quotes, wheel
from learning import needs
from running_server import RunningServer
from test_pages_rules import IS_ALL, SIZES

SIZE = 50_000_000


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

    quote = sends_and_quotes(page, server.url, wheel(tmp_path), provider="local")
    assert "About" in page.locator("main").inner_text()
    run = runs_what_is_quoted(page)
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
