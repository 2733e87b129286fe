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


GANGS = """
name: steps
provider: [hosts, lab]
budget: {total: $1}
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2, per_node: 1}
    framework: plain
    hardware: {cpus: 1}
    parameters: {rate: [1, 2]}
    workers: 4
    command: python3 train.py 20 0.3
"""
WORKFLOW = """
name: steps
budget: {total: $1}
experiments:
  prepare:
    provider: hosts
    hardware: {cpus: 1}
    command: python3 train.py 20 0.3
  train:
    provider: lab
    after: prepare
    hardware: {cpus: 1}
    command: python3 train.py 20 0.3
"""
#: What is quoted, and what each place has of it.
KNOWN = {
    "gangs": (GANGS, {"hosts": {"train": 1}, "lab": {"train": 1}}),
    "workflow": (WORKFLOW, {"hosts": {"prepare": 1}, "lab": {"train": 1}}),
}


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

    same_at_all_doors(server, renter, page, recipe)
    renter.call("team", "create", "vision", "--monthly-usd", "20", **server.env)
    renter.call("team", "add-member", "vision", "ann", **server.env)
    ours = ("ann", "--scopes", "read,run", "--user", "ann", "--team", "vision", "--json")
    server.token = json.loads(renter.call("token", "create", *ours, **server.env).stdout)["token"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.send(STEPS, {"recipe": recipe, "max_usd": 1})
    assert "provider: hosts; the code of others runs on rented machines only" in refused.value.read().decode()


def asked(server: Any, recipe: str) -> dict[str, Any]:
    """The quote of a recipe by REST, or why there is none."""
    wanted = {"recipe": recipe, "code": server.put_code(STEPS), "measure": False}
    name = server.ask("POST", "/quotes", wanted)[1]["id"]
    server.process.until(lambda: server.json(f"/quotes/{name}")["state"] == "DONE", "its quote")
    found: dict[str, Any] = server.json(f"/quotes/{name}")
    return found


def quoted_at_both_doors(server: Any, renter: Renter, recipe: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the command line says, and what REST does: each place has the same machines, tasks and wait."""
    path, env = renter.work / "recipe.yaml", {**server.env, "HF_TOKEN": SECRET}
    path.write_text(recipe)
    told = json.loads(renter.call("quote", path, "--no-measure", "--json", **env).stdout)
    made = asked(server, recipe)
    assert made["error"] is None, made
    for one, other in zip(told["places"], made["answer"]["places"], strict=True):
        keys = ("place", "machines", "tasks", "is_taken", "wait", "why_not", "is_unknown")
        assert {key: one[key] for key in keys} == {key: other[key] for key in keys}
    return told, made


def refused_at_both_doors(server: Any, renter: Renter, recipe: str, words: str) -> None:
    """No quote, for the same reason."""
    path = renter.work / "recipe.yaml"
    path.write_text(recipe)
    env = {**server.env, "HF_TOKEN": SECRET}
    said = renter.call("quote", path, "--no-measure", code=2, **env).stderr
    error = asked(server, recipe)["error"]
    assert words in error["title"]
    assert all(line in said for line in error["title"].splitlines()), (said, error)


def same_at_all_doors(server: Any, renter: Renter, page: Any, recipe: str) -> None:
    """The quote of the sweep that has run, a refusal, and what each place has cost."""
    path = renter.work / "recipe.yaml"
    (renter.work / "train.py").write_text(STEPS)
    env = {**server.env, "HF_TOKEN": SECRET}
    told, made = quoted_at_both_doors(server, renter, recipe)
    shares = {each["place"]: each["tasks"]["train"] for each in told["places"] if each["is_taken"]}
    assert set(shares) == {"hosts", "lab"}
    assert sum(shares.values()) == 6
    assert set(told["experiments"]) == {"train at hosts", "train at lab"}
    page.goto(f"{server.url}/quotes/{made['id']}")
    shown = page.locator("main").inner_text()
    assert all(f"yes: {count} tasks of train" in shown for count in shares.values()), shown
    assert "train at lab" in shown
    page.goto(server.url + "/new")
    page.get_by_role("tab", name="Recipe").click()
    page.locator("#recipe").fill(recipe)
    page.get_by_role("row", name="tasks of train").nth(1).wait_for()

    for more in (
        "objective: cheapest\n",
        "objective: fastest\nbudget: {total: $1, deadline: 1h, per_hour: $1}\n",
    ):
        changed = recipe.replace("budget: {total: $1}\n", "") + more
        path.write_text(changed)
        told = json.loads(renter.call("quote", path, "--no-measure", "--json", **env).stdout)
        made = asked(server, changed)
        answer = made["answer"]
        assert answer is not None, made
        taken = [[each["place"] for each in one["places"] if each["is_taken"]] for one in (told, answer)]
        assert taken[0] == taken[1] != [], (told, answer)

    impossible = recipe.replace("cpus: 1", "cpus: 1, gpu: H200")
    refused_at_both_doors(server, renter, impossible, "no place would give what this recipe asks for")
    page.goto(server.url + "/new")
    page.get_by_role("tab", name="Recipe").click()
    page.locator("#recipe").fill(impossible)
    page.get_by_text("no place would give what this recipe asks for").first.wait_for()

    cost = json.loads(renter.call("cost", "--by", "provider", "--json", **env).stdout)
    assert cost == server.json("/cost?by=provider")
    assert "lab" in json.dumps(cost)
    page.goto(server.url + "/cost?by=provider")
    assert "lab" in page.locator("main").inner_text()


@pytest.mark.parametrize("name", KNOWN)
def test_quotes_by_command_line_and_rest(lab: Any, renter: Renter, lab_servers: Any, name: str) -> None:
    """Of gangs, and of a workflow: what nobody knows is told as that; after a run there are numbers."""
    before = lab.alive()
    server = lab_servers("a")
    server.start()
    wanted = ("token", "create", "own", "--scopes", "admin", "--json")
    server.token = json.loads(renter.call(*wanted, **server.env).stdout)["token"]
    (renter.work / "train.py").write_text(STEPS)
    text, tasks = KNOWN[name]
    recipe = with_engine(text, "ssh")
    told, made = quoted_at_both_doors(server, renter, recipe)
    assert all(each["is_unknown"] for each in told["places"] if each["is_taken"])
    if name == "gangs":  # nobody knows how many steps they make
        for one in (told, made["answer"]):
            assert "how long it runs is not known" in one["unknown"]["words"]
    run = server.send(STEPS, {"recipe": recipe, "max_usd": 1})[1]["run"]
    server.process.until(lambda: server.json(f"/runs/{run}")["state"] == "DONE", "its end")
    found = server.json(f"/runs/{run}")
    assert found["reason"] == "SUCCEEDED", found

    def held() -> str:
        return str(renter.call("clusters", "--json", **server.env).stdout)

    server.process.until(lambda: not json.loads(held())["clusters"], "all machines are free again")
    told, made = quoted_at_both_doors(server, renter, recipe)
    rows = {each["place"]: each for each in told["places"] if each["is_taken"]}
    assert {place: row["tasks"] for place, row in rows.items()} == tasks
    assert not any(each["is_unknown"] for each in rows.values())
    parts = [each["time_s"]["p50"] for each in told["experiments"].values()]
    least_s = sum(parts) if name == "workflow" else max(parts)
    for one in (told, made["answer"]):
        assert one["total"]["time_s"]["p50"] == pytest.approx(least_s, rel=0.2)
        assert one["total"]["cost_usd"]["p50"] == pytest.approx(rows["lab"]["cost_usd"]["p50"], rel=0.2)
    assert lab.alive() == before


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
