"""How long after its cause a workflow's task begins: a new version of a volume, a webhook, a time.

Versions and webhooks come one after the other, so that a driver is there; times come every two minutes, when
the driver before has ended and a new one has to start.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from common import TRAINMASTER, options, report, seconds, spread, workshop

RECIPE = """name: {name}
on: {on}
experiments:
  main: {{command: "date +%s.%N >> {began}"}}
"""
LONGEST_S = 300.0
EVERY_S = 120.0


def main() -> None:
    chosen = options(__doc__ or "", runs=10, times=3)
    directory, env = workshop()
    with directory:
        place = Path(directory.name)
        command = [TRAINMASTER, "server", "--port", "0", "--json"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = json.loads(server.stdout.readline())["url"]
                made = [TRAINMASTER, "token", "create", "bench", "--scopes", "read,run", "--json"]
                token = json.loads(subprocess.check_output(made, env=env))["token"]
                found = measured(place, url, token, env, chosen.runs, chosen.times)
            finally:
                server.terminate()
    report(
        "workflow_starts",
        {"begins_after_s": found, "targets": {"most_s": 5.0}},
        {kind: each["median"] for kind, each in found.items()},
        "seconds",
    )


def measured(place: Path, url: str, token: str, env: dict[str, str], runs: int, times: int) -> dict:
    (place / "pets").mkdir()
    volume = f"file://{env['TRAINMASTER_HOME']}/store/volumes/pets"
    push = [TRAINMASTER, "volume", "push", "pets", volume]
    began = {kind: place / f"began-{kind}" for kind in ("volume", "webhook", "time")}

    def pushed() -> float:
        (place / "pets" / "a.txt").write_text(str(time.time()))
        seconds(push, env, str(place))
        return time.time()

    pushed()
    on = {"volume": "{volume: pets}", "webhook": "webhook", "time": '{schedule: "*/2 * * * *"}'}
    kept = {}
    for kind, file in began.items():
        recipe = RECIPE.format(name=kind, on=on[kind], began=file)
        kept[kind] = asked(f"{url}/api/v1/workflows", token, {"recipe": recipe})

    def called() -> float:
        asked(url + kept["webhook"]["hook"], kept["webhook"]["secret"], {})
        return time.time()

    def timed() -> float:
        return time.time() // EVERY_S * EVERY_S + EVERY_S  # the next one

    def begins(file: Path, cause: Callable[[], float]) -> float:
        count = len(lines(file))
        caused = cause()
        until = max(caused, time.time()) + LONGEST_S
        while len(lines(file)) <= count:
            if time.time() > until:
                raise SystemExit(f"{file.name}: nothing began")
            time.sleep(0.05)
        return lines(file)[count] - caused

    ways = {"volume": (pushed, runs), "webhook": (called, runs), "time": (timed, times)}
    return {
        kind: spread([begins(began[kind], cause) for _ in range(count)])
        for kind, (cause, count) in ways.items()
    }


def lines(file: Path) -> list[float]:
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def asked(url: str, token: str, body: dict) -> dict:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict = json.load(answer)
    return found


if __name__ == "__main__":
    main()
