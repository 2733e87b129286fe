"""What a layman sends by the pages, a wheel whose script reads data, and what another team sees of it."""

from __future__ import annotations

import json
import urllib.error
import zipfile
from pathlib import Path
from typing import Any

from running_server import RunningServer

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
API = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())["paths"]


def wheel(directory: Path) -> Path:
    """A wheel with the script."""
    path = directory / "line-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.py", SCRIPT)
        archive.writestr("line-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: line\nVersion: 1.0\n")
        archive.writestr(
            "line-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("line-1.0.dist-info/RECORD", "")
    return path


def sends_and_quotes(page: Any, url: str, file: Path, **resource: str) -> str:
    """Fill in a run of the wheel on `photos`, for at most $0.50, and have it quoted; the id of the quote."""
    page.goto(url + "/new")
    page.get_by_label("Name of the runs").fill("line")
    page.locator("#file").set_input_files(file)
    page.get_by_text("line-1.0-py3-none-any.whl is sent.").wait_for()
    page.get_by_role("tab", name="Data").click()
    page.locator("[name=data]").select_option("volume")
    page.locator("[name=source]").fill("photos")
    page.get_by_role("tab", name="Resource").click()
    page.locator("[name=provider]").select_option(resource.pop("provider"))
    for name, value in resource.items():
        page.locator(f"[name={name}]").fill(value)
    page.locator("[name=budget]").fill("0.50")
    page.get_by_role("tab", name="Model").click()
    page.locator("[name=steps]").fill(str(STEPS))
    page.get_by_role("tab", name="Recipe").click()
    wanted = f"() => document.querySelector('#recipe').value.includes('steps: {STEPS}')"
    page.wait_for_function(wanted, timeout=240_000)
    recipe = page.locator("#recipe").input_value()
    assert "0.50" in recipe
    assert "train.py" in recipe, "what the wheel has is the main script"
    page.get_by_role("button", name="Quote it first").click()
    page.locator(".quote-go").get_by_role("link").wait_for()
    return str(page.url.rpartition("/")[2])


def runs_what_is_quoted(page: Any) -> str:
    """Go on from a quote to a run, and wait for its first curve; the run's id."""
    page.locator(".quote-go").get_by_role("link").click()
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/runs/line-*")
    page.locator(".chart canvas").first.wait_for()
    return str(page.url.rpartition("/")[2])


def seen_by_another(server: RunningServer, token: str, **names: str) -> dict[tuple[str, str], int]:
    """Of every route and page that has one of these names in its path: those that do not say 404."""
    other = RunningServer(server.begin, token)
    found: dict[tuple[str, str], int] = {}
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
