"""FC2's user: everything on a page of a phone's size, and one request by `curl` at the end.

A server on a home of its own, Chromium at 390 x 844. The code is a wheel, the data are a file of the phone's;
the resources are quoted, the training runs, its end is told to somebody by HTTP, and the model answers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from claims import Seen
from tables import SimulationReport, options

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ruamel.yaml import YAML
from service import Server, home

from trainmaster.testing import line_fit

CLAIMS = {
    "code comes as a Python wheel with a main script": "figure 3",
    "data come as files, or from a URL": "figure 4",
    "the system chooses machines by Cost-Opt, and the recipe has them": "5.2.2, figure 5",
    "by hand: this machine; it is measured and quoted before it runs": "figure 5",
    "the training runs, and is followed on the page": "said (4.1), no number",
    "its end is told by an HTTP request": "said (6), no number",
    "results are there to be downloaded": "said (4.1), no number",
    "the model, a line's slope, is deployed and answers requests": "TensorFlow Serving (4.1)",
    "all of it on a phone: no page is wider than it": "responsive design (section 6)",
}
WIDTH, HEIGHT = 390, 844
#: FC2's equation of Cost-Opt: the cheapest type, and as many as $2 an hour pay beside a server of $0.125.
WORKERS = int((2 - 0.125) / 0.231)
#: For one step of it; a busy machine starts a replica in a minute.
PATIENCE_S = 180


@contextmanager
def listener() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A reader that is told: the URL, and what was told so far."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", told
    finally:
        server.shutdown()
        server.server_close()


def wheel(directory: Path) -> Path:
    """A wheel whose main script trains."""
    path = directory / "line-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.py", line_fit.SCRIPT)
        archive.writestr("line-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: line\nVersion: 1.0\n")
        archive.writestr(
            "line-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("line-1.0.dist-info/RECORD", "")
    return path


def until(true: Callable[[], Any], what: str) -> Any:
    """What it gives at last."""
    end = time.monotonic() + PATIENCE_S
    while not (found := true()):
        if time.monotonic() > end:
            raise TimeoutError(f"not after {PATIENCE_S} s: {what}")
        time.sleep(0.3)
    return found


class Phone:
    """A page of a phone's size, and what was seen on it."""

    def __init__(
        self, browser: Any, server: Server, work: Path, hook: str, told: list[dict[str, Any]]
    ) -> None:
        self.page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.server, self.work, self.hook, self.told = server, work, hook, told
        self.widths: dict[str, int] = {}
        self.seen: list[Seen] = []

    def go(self, path: str) -> None:
        """To a page."""
        self.page.goto(self.server.url + path)
        self.look(path)

    def look(self, path: str) -> None:
        """How wide a page is."""
        self.widths[path] = self.page.evaluate("document.documentElement.scrollWidth")

    def use(self) -> None:
        """From the login to an answer of the model; what was seen stays, also where it ends early."""
        page = self.page
        page.goto(self.server.setup_url)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="New run").wait_for()
        self.go("/notifications")
        page.get_by_label("Send to").fill(self.hook)
        page.locator("[name=topic][value='run.ended']").check()
        page.get_by_role("button", name="Add").click()
        page.locator("pre.copy").wait_for()  # the secret
        self.sends()
        self.chooses()
        self.runs()
        self.serves()
        wide = {path: width for path, width in self.widths.items() if width > WIDTH}
        here = f"{len(self.widths)} pages, the widest {max(self.widths.values())} of {WIDTH} pixels"
        self.seen.append(Seen(not wide, here, f"wider: {', '.join(wide)}"))

    def sends(self) -> None:
        """Data, code, and where it is to run."""
        page = self.page
        points = self.work / "points.csv"
        points.write_text(line_fit.POINTS)
        self.go("/volumes")
        page.get_by_label("Volume").fill("points")
        page.get_by_label("Files").set_input_files(points)
        page.get_by_role("button", name="Send").click()
        page.wait_for_url("**/volumes/points")
        self.look("/volumes/points")
        self.go("/new")
        self.seen.append(Seen(True, f"{self.code()}, main script train.py", ""))
        ways = page.locator("[name=data] option").all_text_contents()
        self.seen.append(
            Seen("a URL" in ways, f"a file, sent from the phone; also: {', '.join(ways)}", "no URL")
        )

    def code(self) -> str:
        """The tabs of code and data; the name of the file that is sent."""
        page, code = self.page, wheel(self.work)
        page.get_by_label("Name of the runs").fill("line")
        page.get_by_label("Main script").fill("train.py")
        page.locator("#file").set_input_files(code)
        page.get_by_text(f"{code.name} is sent.").wait_for()
        page.get_by_role("tab", name="Data").click()
        page.locator("[name=data]").select_option("volume")
        page.locator("[name=source]").fill("points")
        return code.name

    def fills(self, **fields: str) -> None:
        """The tab of resources, and waits until the recipe has them all."""
        page = self.page
        page.get_by_role("tab", name="Resource").click()
        for name, value in fields.items():
            field = page.locator(f"[name={name}]")
            is_list = field.evaluate("field => field.tagName") == "SELECT"
            (field.select_option if is_list else field.fill)(value)
        page.get_by_role("tab", name="Recipe").click()
        wanted = f"provider: {fields['provider']}"
        until(lambda: wanted in page.locator("#recipe").input_value(), "the recipe is written")

    def chooses(self) -> None:
        """FC2's Cost-Opt on FC2's price list, looked at and not rented; then this machine, by hand."""
        page = self.page
        page.get_by_role("tab", name="Model").click()
        page.locator("[name=batch]").fill("128")
        page.locator("[name=steps]").fill("1000")
        types = {"instance": "m4.xlarge, c4.xlarge, t2.xlarge", "server": "m4.large"}
        self.fills(
            provider="aws", policy="cost-opt", catalogue="fc2-2018", per_hour="2", most_workers="16", **types
        )
        page.get_by_role("button", name="Quote it first").click()
        page.get_by_role("button", name="Go on with what is quoted").click()
        recipe = YAML(typ="safe").load(page.locator("#recipe").input_value())
        train = recipe["experiments"]["train"]
        server = train["distributed"]["hardware"]["ps"]["instance"]
        chosen = train["distributed"]["workers"], train["hardware"]["instance"]
        here = f"{chosen[0]} x {chosen[1]} with a server {server}, by the equation {WORKERS} x c4.xlarge"
        self.seen.append(
            Seen((*chosen, server) == (WORKERS, "c4.xlarge", "m4.large"), here, "another cluster")
        )
        self.go("/new")
        self.code()

    def runs(self) -> None:
        """Quoted, run, told, downloaded."""
        page = self.page
        self.fills(provider="local")
        began = time.monotonic()
        page.get_by_role("button", name="Quote it first").click()
        page.get_by_role("button", name="Go on with what is quoted").click()
        self.seen.append(Seen(True, f"quoted after {time.monotonic() - began:.1f} s, by measuring", ""))
        began = time.monotonic()
        page.get_by_role("button", name="Run it").click()
        page.wait_for_url("**/runs/line-*")
        page.locator("#part .state", has_text="succeeded").first.wait_for()
        self.seen.append(Seen(True, f"succeeded, {time.monotonic() - began:.1f} s after it was begun", ""))
        self.look("/runs/RUN")
        began = time.monotonic()
        first = until(lambda: next(iter(self.told), None), "the end of the run is told")
        late_s = max(0.0, time.monotonic() - began)
        run = page.url.rpartition("/")[2]
        self.seen.append(
            Seen(
                run in json.dumps(first),
                f"told {late_s:.1f} s after the page",
                "another run was told",
            )
        )
        page.get_by_role("link", name="train/0").click()
        page.get_by_role("link", name="Deploy").wait_for()
        self.look("/runs/RUN/models/train/0")
        link = page.locator("main a[href*='slope']").first
        with page.expect_download() as started:
            link.evaluate("a => { a.setAttribute('download', ''); a.click(); }")
        slope = Path(started.value.path()).read_text()
        self.seen.append(Seen(float(slope) == 3, f"the model's file, slope {slope}", "its content is wrong"))

    def serves(self) -> None:
        """Deployed, and asked by `curl` as the page says."""
        page = self.page
        began = time.monotonic()
        page.get_by_role("link", name="Deploy").click()
        page.get_by_role("button", name="Run it").click()
        page.wait_for_url("**/runs/line-*")
        self.go("/team")
        page.get_by_label("Name of a new token").fill("phone")
        for scope in ("read", "run", "infer"):
            page.get_by_role("checkbox", name=scope, exact=True).set_checked(scope == "infer")
        page.get_by_role("button", name="Make a token").click()
        token = page.locator("pre.copy").inner_text()
        self.go("/services")
        page.locator("td a[href^='/services/']").click()

        def is_ready() -> bool:
            page.reload()
            return bool(page.locator("dd", has_text="ready").count())

        until(is_ready, "a replica is ready")
        self.look("/services/NAME")
        page.get_by_role("button", name="Ask").click()
        page.get_by_text("Status 200").wait_for()
        asks = page.locator("pre.copy").inner_text()
        env = {**os.environ, "TOKEN": token}
        asked = subprocess.run(
            asks, shell=True, env=env, capture_output=True, text=True, timeout=60, check=True
        )
        outputs = json.loads(asked.stdout)["outputs"][0]["data"]
        here = f"curl got {outputs} for 1 and 2, {time.monotonic() - began:.0f} s after Deploy"
        self.seen.append(Seen(outputs == [3.0, 6.0], here, "its answer is wrong"))
        page.get_by_role("button", name="End").click()
        page.locator("dialog button.danger").click()
        page.locator("#part .state", has_text="cancelled").first.wait_for()


def main() -> None:
    arguments = options(__doc__ or "")
    report = SimulationReport("phone", arguments.quick)
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        sys.exit("there is no Chromium: apt-get install chromium-headless-shell")
    from playwright.sync_api import Error, sync_playwright

    failure = ""
    with (
        tempfile.TemporaryDirectory() as work,
        listener() as (hook, told),
        home(False) as env,
        sync_playwright() as playwright,
    ):
        server = Server({**env, "TRAINMASTER_WEBHOOK_NETWORKS": "127.0.0.1/32"})
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        phone = Phone(browser, server, Path(work), hook, told)
        try:
            phone.use()
        except (Error, TimeoutError, subprocess.SubprocessError) as error:
            failure = str(error).splitlines()[0]
        finally:
            browser.close()
            server.stop()
    names = list(CLAIMS)
    seen = dict(zip(names, phone.seen, strict=False))
    for left in names[len(seen) :]:
        seen[left] = Seen(False, "", f"not reached: {failure}")
    report.end(CLAIMS, seen)


if __name__ == "__main__":
    main()
