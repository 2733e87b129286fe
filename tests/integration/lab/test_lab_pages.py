"""A member of a team on a phone, on rented machines: a wheel, data, a budget, a first quote, its model.

Part of `make pages`: meanwhile another team's member asks for all of it, and gets a 404 each time.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from layman import STEPS, runs_what_is_quoted, seen_by_another, sends_and_quotes, wheel
from learning import needs
from renter import Renter
from test_pages_rules import IS_ALL, SIZES

SIZE = 5_000_000


@pytest.mark.skipif(not IS_ALL, reason="part of `make pages`")
@pytest.mark.timeout(1200)
@pytest.mark.browser
@pytest.mark.s3
def test_a_member_of_a_team_on_a_phone_trains_a_wheel_on_a_rented_machine(
    lab: Any, renter: Renter, lab_servers: Any, browser: Any, tmp_path: Path
) -> None:
    needs("pyarrow")
    before = lab.alive()
    server = lab_servers("a")
    server.start()
    tokens = {}
    for team, name in (("vision", "ann"), ("other", "eve")):
        renter.call("team", "create", team, "--monthly-usd", "20", **server.env)
        renter.call("team", "add-member", team, name, **server.env)
        made = ("token", "create", name, "--scopes", "read,run", "--user", name, "--team", team, "--json")
        tokens[name] = json.loads(renter.call(*made, **server.env).stdout)["token"]
    data = tmp_path / "photos.bin"
    data.write_bytes(os.urandom(SIZE))
    width, height = SIZES["phone"]
    page = browser.new_context(viewport={"width": width, "height": height}, has_touch=True).new_page()
    page.set_default_timeout(240_000)
    page.goto(server.url + "/login")
    page.get_by_label("Token").fill(tokens["ann"])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()

    page.goto(server.url + "/volumes")
    page.get_by_label("Volume").fill("photos")
    page.get_by_label("Files").set_input_files(data)
    page.get_by_role("button", name="Send").click()
    page.wait_for_url("**/volumes/photos")

    rented = {"provider": "lab", "region": "us-east-1", "instance": "m4.xlarge"}
    quote = sends_and_quotes(page, server.url, wheel(tmp_path), **rented)
    said = page.locator("main").inner_text()
    assert "Nothing is known of this job yet" in said
    assert "Measure first: m4.xlarge" in said
    run = runs_what_is_quoted(page)
    names = {"run": run, "quote": quote, "upload": "0" * 32}
    assert seen_by_another(server, tokens["eve"], **names) == {}
    page.goto(server.url + "/clusters")
    assert run in page.locator("main").inner_text(), "what is rented is seen by the team that pays"
    page.goto(f"{server.url}/runs/{run}")
    page.locator("#part .state", has_text="succeeded").first.wait_for()
    shown = page.evaluate("[...charts.chart('loss').series.values()].map(each => each.xs)")
    assert shown == [list(range(1, STEPS + 1))], "no gap, and nothing twice"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").first.click()
    with zipfile.ZipFile(download.value.path()) as model:
        (name,) = [each for each in model.namelist() if each.endswith("weights.txt")]
        assert model.read(name).decode() == str(SIZE)
    assert seen_by_another(server, tokens["eve"], **names) == {}
    server.token = tokens["ann"]
    assert 0 < server.json(f"/runs/{run}")["cost_usd"] < 0.5
    page.context.close()
    server.process.until(lambda: lab.alive() == before, "no machine is left")
