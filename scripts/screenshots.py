"""Pictures of the pages for the tutorials: a real server, real runs, Debian's Chromium.

    python scripts/screenshots.py [--out docs/images] [--every]

What is taken is in `SCENES`. Needs playwright and `chromium-headless-shell`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

SIZES: Final = {"desk": (1280, 800), "tall": (1280, 1240), "phone": (390, 844)}
#: Picture, size, page, and what is scrolled to (a CSS selector; empty: the top).
SCENES: Final = (
    ("new", "desk", "/new", ""),
    ("quote", "desk", "/quotes/{quote}", ""),
    ("run-phone", "phone", "/runs/{pipeline}", ""),
    ("run", "tall", "/runs/{pipeline}", ""),
    ("machines", "desk", "/runs/{pipeline}/machines", ""),
    ("compare", "desk", "/compare?run={search}&run={again}", ""),
    ("sweep", "desk", "/runs/{search}/sweeps", ""),
    ("team", "desk", "/team?team=vision", ""),
)
#: With `--every`: all of these in both sizes, light and dark.
EVERY: Final = {
    "home": "/", "runs": "/runs", "new": "/new", "models": "/models", "registry": "/registry",
    "workflows": "/workflows", "services": "/services", "examples": "/examples", "volumes": "/volumes",
    "room": "/storage", "clusters": "/clusters", "offers": "/offers", "recommend": "/recommend",
    "apps": "/apps", "team": "/team", "cost": "/cost", "notifications": "/notifications", "audit": "/audit",
    "places": "/places",
    "run": "/runs/{pipeline}", "failed": "/runs/{broken}", "logs": "/runs/{pipeline}/logs",
    "machines": "/runs/{pipeline}/machines", "history": "/runs/{pipeline}/history",
    "search": "/runs/{search}/sweeps", "again": "/runs/{search}/again", "quote": "/quotes/{quote}",
    "compare": "/compare?run={search}&run={again}",
}  # fmt: skip
_TRAIN: Final = """\
import json, math, os, sys, time
options = dict(zip(sys.argv[1::2], map(float, sys.argv[2::2])))
rate, decay, steps = options["--lr"], options.get("--decay", 0.0), int(options["--steps"])
loss = 2.3
for step in range(1, steps + 1):
    sum(n * n for n in range(150_000))  # so that something is seen of the processor
    time.sleep(0.05)  # long enough for a binding quote, however fast the machine is
    loss += -rate * (loss - 0.1 - abs(rate - 0.12) - decay) + 0.02 * math.sin(step * 7.1)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "loss": loss, "accuracy": 1 / (1 + loss)}) + "\\n")
    if step % 10 == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)
    if os.environ.get("TRAINMASTER_CHECKPOINT_DIR"):
        with open(os.environ["TRAINMASTER_CHECKPOINT_DIR"] + "/state.json", "w") as file:
            json.dump({"step": step}, file)
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model.json", "w") as file:
    json.dump({"loss": loss}, file)
"""
_RECIPES: Final = {
    "pipeline": """\
name: pictures
experiments:
  prepare:
    command: "echo 'images: 60000' && echo 60000 > $TRAINMASTER_OUTPUT_DIR/images.txt"
  train:
    data: {{images: {{from: prepare}}}}
    distributed: {{strategy: allreduce, workers: 2}}
    checkpoint: {{every: 2s}}
    steps: 400
    command: {train} --lr 0.05 --steps 400
  evaluate:
    data: {{model: {{from: train}}}}
    command: "echo 'accuracy 0.91'"
  report:
    data: {{model: {{from: train}}, images: {{from: prepare}}}}
    command: "echo done"
""",
    "search": """\
name: rates
experiments:
  tune:
    parameters: {{lr: {{range: 0.01-0.5, sampling: log}}, decay: [0, 0.1]}}
    samples: 8
    search: {{metric: loss, goal: min}}
    command: {train} --lr {{{{lr}}}} --decay {{{{decay}}}} --steps 60
""",
    "again": """\
name: rates
experiments:
  tune:
    parameters: {{lr: {{range: 0.05-0.2, sampling: log}}, decay: [0]}}
    samples: 4
    search: {{metric: loss, goal: min}}
    command: {train} --lr {{{{lr}}}} --decay {{{{decay}}}} --steps 60
""",
    "broken": 'name: oops\nexperiments:\n  train: {{command: "echo no such file >&2; exit 3"}}\n',
}
#: A job that was measured on one machine and on two: what is quoted needs no such machine.
_QUOTED: Final = {
    "catalogue": "builtin",
    "measurements": "job,sync,nodes,workers,local_batch,step_time_s,instance\n"
    "train,allreduce,1,1,256,0.42,g4dn.xlarge\ntrain,allreduce,2,2,128,0.27,g4dn.xlarge\n",
    "recipe": """\
name: pictures
provider: aws
objective: {time: 1, cost: 2000}
experiments:
  train:
    command: python train.py
    framework: pytorch
    distributed: {strategy: allreduce, workers: 1..8}
    batch: {global: 256}
    steps: 40000
    hardware: {gpus: 1}
""",
}
_WAIT_S: Final = 300


class Server:
    """A server on a home of its own, with runs.

    Args:
        home: an empty directory.
    """

    def __init__(self, home: Path) -> None:
        self._command = [shutil.which("trainmaster", path=str(Path(sys.executable).parent)) or "trainmaster"]
        self._environ = {**os.environ, "TRAINMASTER_HOME": str(home)}
        script = home.parent / "train.py"
        script.write_text(_TRAIN)
        self._train = f"{sys.executable} {script}"
        made = self._call("token", "create", f"pictures-{os.getpid()}", "--scopes", "read,run", "--json")
        self._token = json.loads(made)["token"]
        self.process = subprocess.Popen(
            [*self._command, "server", "--port", "0", "--json"],
            env=self._environ, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.url, self.setup_url = said["url"], said["setup_url"]

    def _call(self, *arguments: str) -> str:
        command = [*self._command, *arguments]
        made = subprocess.run(command, env=self._environ, check=True, capture_output=True, text=True)
        return made.stdout

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """An answer of REST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data)
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def run_all(self) -> dict[str, str]:
        """Runs every recipe, and asks for a quote; their ids by the names in `_RECIPES`, and ``quote``."""
        runs = {"quote": self.ask("/quotes", _QUOTED)["id"]}
        self._wait(f"/quotes/{runs['quote']}")
        self._run("pipeline")  # what it measures is what the next one is quoted by
        runs |= {name: self._run(name) for name in _RECIPES}
        self._call("team", "create", "vision", "--monthly-usd", "200")  # what others send does not run here
        return runs

    def _run(self, name: str) -> str:
        run = str(self.ask("/runs", {"recipe": _RECIPES[name].format(train=self._train)})["run"])
        self._wait(f"/runs/{run}")
        return run

    def _wait(self, path: str) -> None:
        until = time.monotonic() + _WAIT_S
        while self.ask(path)["state"] != "DONE":
            if time.monotonic() > until:
                raise TimeoutError(f"{path} is not over after {_WAIT_S} s")
            time.sleep(1)


def take_every(server: Server, runs: dict[str, str], out: Path) -> None:
    """Takes all pages as they are on a desk and on a phone."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.setup_url)
        page.get_by_role("button", name="Log in").click()
        for size, width, height in (("desk", 1440, 900), ("phone", 390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                for name, path in EVERY.items():
                    page.goto(server.url + path.format(**runs))
                    page.wait_for_timeout(800)  # curves are drawn
                    page.screenshot(path=out / f"{name}-{size}-{scheme}.png")
        browser.close()


def take(server: Server, runs: dict[str, str], out: Path, wanted: list[str]) -> list[str]:
    """Takes the pictures; which pages are not there."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    missing = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.setup_url)
        page.get_by_role("button", name="Log in").click()
        for name, size, path, place in SCENES:
            if wanted and name not in wanted:
                continue
            width, height = SIZES[size]
            page.set_viewport_size({"width": width, "height": height})
            answer = page.goto(server.url + path.format(**runs))
            if answer is None or not answer.ok:
                missing.append(name)
                continue
            page.wait_for_timeout(1500)  # curves are drawn
            if place:
                page.locator(place).scroll_into_view_if_needed()
                page.evaluate("place => document.querySelector(place).scrollIntoView()", place)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(128).save(out / f"{name}.png", optimize=True)
        browser.close()
    return missing


def main() -> int:
    """Takes all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--home", type=Path, help="a home that stays, for a second look")
    parser.add_argument("--every", action="store_true", help="every page in both sizes, light and dark")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        home = options.home or Path(scratch) / "home"
        known = home / "runs-of-pictures.json"
        is_new = not known.exists()
        home.mkdir(parents=True, exist_ok=True)
        server = Server(home)
        try:
            runs = server.run_all() if is_new else json.loads(known.read_text())
            known.write_text(json.dumps(runs))
            if options.every:
                take_every(server, runs, options.out)
                return 0
            missing = take(server, runs, options.out, options.names)
        finally:
            server.process.terminate()
            server.process.wait()
    if missing:
        print("no such pages:", ", ".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
