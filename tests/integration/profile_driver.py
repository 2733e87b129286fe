"""Measures a recipe and prints what was found as JSON: ``RECIPE [EXPERIMENT...]``."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from trainmaster.control.task.layout import Home
from trainmaster.service import Service
from trainmaster.service.quotes.profiling import Profiler
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import TrainmasterError


def main() -> int:
    service = Service(Home.from_environment())
    profiler = Profiler(service)
    signal.signal(signal.SIGINT, lambda *_: profiler.interrupt())
    seen = []

    def tell(progress):
        if progress.phase != (seen[-1] if seen else None):
            print(progress.phase, file=sys.stderr, flush=True)
        seen.append(progress.phase)

    path = Path(sys.argv[1])
    try:
        recipe = read_recipe(path)
        found = profiler.measure(recipe, os.environ, sys.argv[2:] or None, tell)
        history = service.measurements(recipe)
    except TrainmasterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        service.close()
    print(
        json.dumps(
            {
                "measured": {name: [asdict(each) for each in some] for name, some in found.items()},
                "not_measured": profiler.not_measured,
                "known": {name: [asdict(one) for one in each.same] for name, each in history.items()},
                "same": {name: len(each.same) for name, each in history.items()},
                "similar": {name: len(each.similar) for name, each in history.items()},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
