"""A run in several places by other doors: a team's by REST on a server, its page, a container, a machine.

Hosts are those of the lab's owner, the other place rents in the lab.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from private_engines import IMAGE, NoEngineError, PrivateEngine, make_image
from renter import SCALE, STEPS, Renter, with_engine
from test_pages_rules import browser

__all__ = ["browser"]
pytestmark = [pytest.mark.crossings, pytest.mark.s3, pytest.mark.timeout(900)]
SECRET = "hf_of_a_test"
RECIPE = """
name: steps
provider: [hosts, lab]
budget: {total: $1}
experiments:
  train:
    hardware: {cpus: 1}
    parameters: {rate: [1, 2, 3, 4, 5, 6]}
    workers: 4
    secrets: [HF_TOKEN]
    command: printf %s "$HF_TOKEN" | sha256sum; python3 train.py 20 0.3
"""


@pytest.fixture(scope="module")
def lab(make_lab_user: Callable[[], Any]) -> Any:
    """Somebody with two hosts: with another lab than the other files here."""
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", "2")
    return user


def machines_of(attempts: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Places and names."""
    return {(each["provider"], each["machine"]) for one in attempts for each in one["machines"]}


def test_by_rest_on_a_server_and_its_pages(lab: Any, renter: Renter, lab_servers: Any, browser: Any) -> None:
    """Its owner's, with a token; then a team's, which may be on no hosts: that is said before it starts."""
    before = lab.alive()
    server = lab_servers("a")
    server.env["HF_TOKEN"] = SECRET
    server.start()
    wanted = ("token", "create", "own", "--scopes", "admin", "--json")
    server.token = json.loads(renter.call(*wanted, **server.env).stdout)["token"]
    recipe = with_engine(RECIPE, "ssh")

    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(server.url + "/login")
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run").wait_for()
    page.goto(server.url + "/new")
    page.get_by_role("tab", name="Recipe").click()
    whole = recipe.replace("    workers: 4\n", "").replace("[1, 2, 3, 4, 5, 6]", "[1, 2]")
    page.locator("#recipe").fill(whole)
    page.get_by_role("row", name="hosts").first.wait_for()
    row = page.get_by_role("row", name="lab").first.inner_text()
    assert "an earlier one begins in time" in row, row

    run = server.send(STEPS, {"recipe": recipe, "max_usd": 1})[1]["run"]
    server.process.until(lambda: server.json(f"/runs/{run}")["state"] == "DONE", "its end")
    found = server.json(f"/runs/{run}")
    assert found["reason"] == "SUCCEEDED", found
    tasks = found["place"]["tasks"]["train"]
    assert set(tasks) == {"hosts", "lab"}
    assert sum(tasks.values()) == 6
    machines = machines_of(server.json(f"/runs/{run}/attempts")["attempts"])
    assert {name for name, _ in machines} == {"hosts", "lab"}
    logs = server.read(f"/runs/{run}/logs").decode()
    assert logs.count(hashlib.sha256(SECRET.encode()).hexdigest()) == 6
    page.goto(f"{server.url}/runs/{run}/history")
    shown = page.locator("main").inner_text()
    assert all(f"{machine} of {provider}" in shown for provider, machine in machines), shown
    page.goto(f"{server.url}/runs/{run}")
    assert f"hosts ({tasks['hosts']} tasks)" in page.locator("main").inner_text()
    server.process.until(lambda: lab.alive() == before, "no machine is left")
    assert found["cost_usd"] > 0

    renter.call("team", "create", "vision", "--monthly-usd", "20", **server.env)
    renter.call("team", "add-member", "vision", "ann", **server.env)
    ours = ("ann", "--scopes", "read,run", "--user", "ann", "--team", "vision", "--json")
    server.token = json.loads(renter.call("token", "create", *ours, **server.env).stdout)["token"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.send(STEPS, {"recipe": recipe, "max_usd": 1})
    assert "provider: hosts; the code of others runs on rented machines only" in refused.value.read().decode()


def test_containers_are_on_both(renter: Renter, lab: Any) -> None:
    before = lab.alive()
    try:
        engine = PrivateEngine("podman", make_image(("bash", "cat", "sleep"), python=False))
    except NoEngineError as error:
        pytest.skip(str(error))
    with engine:
        renter.env |= engine.env | {"HF_TOKEN": SECRET}
        text = RECIPE.replace("    workers", f"    container: {IMAGE}\n    workers")
        text = text.partition("    command:")[0] + '    command: echo "image $FROM_IMAGE"; sleep 8\n'
        (renter.work / "recipe.yaml").write_text(with_engine(text, "ssh"))
        run = renter.start("run", renter.work / "recipe.yaml", "--yes", "--json").end()["run"]
    status = json.loads(renter.call("status", run, "--json").stdout)
    assert status["reason"] == "SUCCEEDED", status
    assert set(status["place"]["tasks"]["train"]) == {"hosts", "lab"}
    assert renter.call("logs", run).stdout.count("image yes") == 6
    assert lab.alive() == before


def test_a_machine_drives_no_run_in_several_places(renter: Renter, lab: Any) -> None:
    """Refused before anything is asked, with what to do."""
    before, runs = lab.alive(), json.loads(renter.call("status", "--json").stdout)
    (renter.work / "recipe.yaml").write_text(with_engine(RECIPE, "ssh"))
    renter.env["HF_TOKEN"] = SECRET
    told = renter.call("run", renter.work / "recipe.yaml", "--on-cluster", "--yes", code=2).stderr
    assert "provider: hosts, lab: there may be one only: name it with --provider" in told
    assert "Nothing was started" in told
    assert json.loads(renter.call("status", "--json").stdout) == runs
    assert lab.alive() == before
