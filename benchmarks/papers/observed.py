"""What is seen of a run from outside: its events, what its chiefs report, TensorBoard, the lab's own list."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from laboratory import Call, ExperimentError
from surroundings import Surroundings

#: Of one thing that is waited for; beyond it something hangs.
PATIENCE_S = 1800.0
#: Until TensorBoard shows what there is.
SHOWN_S = 300.0


class Watch:
    """Looks at the lab's own list and at what leaves the S3 server, all the time: since when it was so."""

    def __init__(self, around: Surroundings, data_bytes: int) -> None:
        self._around, self._bytes = around, data_bytes
        self.most: dict[str, str] = {}  # machines at their greatest number
        self.infrastructures = 0
        self.at: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(0.5):
            with contextlib.suppress(Exception):  # the API is away for a moment
                machines = self._around.machines()
                if len(machines) > len(self.most):
                    self.most = machines
                    self.infrastructures = len(self._around.infrastructures())
                if self.most and not machines:
                    self.at.setdefault("destroyed", time.time())
            got = sum(self._around.line.got_bytes.values())
            if got > self._bytes / 50:
                self.at.setdefault("staging", time.time())


@dataclass(frozen=True)
class Story:
    """What a run told whom its recipe notifies, and what its chiefs reported.

    Attributes:
        events: of the run, in their order.
        reports: by experiment, of all attempts of the chief.
    """

    events: list[dict[str, Any]]
    reports: dict[str, list[dict[str, Any]]]

    def at(self, state: str, experiment: str) -> float:
        """When the task of an experiment first came into a state."""
        for each in self.events:
            if (each["kind"], each["after"], each["experiment"]) == ("task", state, experiment):
                return float(each["at"])
        raise ExperimentError(f"{experiment} was never {state}")

    def rounds(self, experiment: str) -> list[dict[str, Any]]:
        """Reports of steps."""
        return [each for each in self.reports[experiment] if "seconds" in each]

    def step(self, experiment: str) -> int:
        """The newest; 0 before the first."""
        return int(self.rounds(experiment)[-1]["step"]) if experiment in self.reports else 0


def story_of(around: Surroundings, run: str) -> Story:
    """Events and reports of a run, so far."""
    lines = Path(around.lab.env["EVENTS"]).read_text().splitlines()
    events = [each for each in map(json.loads, lines) if each["run"] == run]
    reports: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((around.lab.home / "runs" / run / "tasks").glob("*/0/*/chief-0.metrics.jsonl")):
        lines = file.read_text().splitlines(keepends=True)
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        reports.setdefault(file.parts[-4], []).extend(whole)
    return Story(sorted(events, key=lambda each: (each["at"], each["id"])), reports)


def tensorboard(around: Surroundings, run: str, wanted: int) -> dict[str, dict[str, int]]:
    """What it shows, asked over HTTP as a browser does: points of each curve, by run and name.

    Args:
        around: where the run is.
        run: that goes on, or is over.
        wanted: so many runs of TensorBoard's are waited for; it reads them one after the other.
    """
    call = around.lab.start("tensorboard", run, "--json")
    deadline = time.monotonic() + SHOWN_S
    try:
        address = call.first(SHOWN_S)["url"]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(address, timeout=60) as answer:
            base = answer.url.partition("?")[0].partition("#")[0]

        def ask(path: str) -> Any:
            with browser.open(base + path, timeout=60) as answer:
                return json.load(answer)

        def curves() -> dict[str, dict[str, int]]:
            tags = ask("data/plugin/scalars/tags")
            return {
                each: {
                    tag: len(ask(f"data/plugin/scalars/scalars?run={quote(each)}&tag={quote(tag)}"))
                    for tag in sorted(found)
                }
                for each, found in tags.items()
                if found
            }

        while len(found := curves()) < wanted and time.monotonic() < deadline:
            time.sleep(1)
        return found
    finally:
        call.interrupt()


def until(look: Callable[[], Any], what: str, call: Call | None = None) -> Any:
    """Looks until there is something.

    Raises:
        ExperimentError: the call ended, or it took too long.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline or (call and call.is_over):
            raise ExperimentError(f"not seen: {what}\n{call.said if call else ''}")
        time.sleep(0.5)
    return found


def kept_in_s3(around: Surroundings, run: str, experiments: list[str]) -> dict[str, int]:
    """Fetches every model of a run, which compares hashes; bytes of the model and of event files, from S3."""
    stored = around.objects(f"store/models/{run}/")
    found = {"objects": len(stored), "bytes": sum(stored.values()), "model_bytes": 0, "event_bytes": 0}
    for experiment in experiments:
        place = around.lab.work / f"model-{experiment}"
        around.lab.call("models", "get", f"{run}/{experiment}", str(place))
        found["model_bytes"] += sum(file.stat().st_size for file in place.rglob("*.keras"))
        found["event_bytes"] += sum(file.stat().st_size for file in place.rglob("*tfevents*"))
    return found
