"""`trainmaster run` of one short task on a context, against the same at home, in turn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from common import TRAINMASTER, options, paired, report, seconds, workshop

RECIPE = "name: one\nexperiments:\n  only: {command: 'true'}\n"


def main() -> None:
    arguments = options(__doc__ or "", runs=9)
    directory, env = workshop()
    with directory:
        work = Path(directory.name, "work")
        work.mkdir()
        (work / "recipe.yaml").write_text(RECIPE)
        served = env | {"TRAINMASTER_HOME": str(Path(directory.name, "server"))}
        command = [TRAINMASTER, "server", "--port", "0", "--json"]
        with subprocess.Popen(command, env=served, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = json.loads(server.stdout.readline())["url"]
                made = subprocess.run(
                    [TRAINMASTER, "token", "create", "bench", "--scopes", "read,run", "--json"],
                    env=served, check=True, capture_output=True, text=True,
                )  # fmt: skip
                asking = env | {
                    "TRAINMASTER_URL": url,
                    "TRAINMASTER_TOKEN": json.loads(made.stdout)["token"],
                    "TRAINMASTER_HOME": str(Path(directory.name, "laptop")),
                }
                ours = [TRAINMASTER, "run", "recipe.yaml"]
                for each in (asking, env):  # a warm home, and a driver that is there
                    seconds(ours, each, str(work))
                found = paired(
                    arguments.runs,
                    lambda: seconds(ours, asking, str(work)),
                    lambda: seconds(ours, env, str(work)),
                )
            finally:
                server.terminate()
    report(
        "context_run",
        {"run_s": found, "targets": {"difference_s": 0.0}},
        {"more on a context": found["difference"]["median"]},
        "seconds",
    )


if __name__ == "__main__":
    main()
