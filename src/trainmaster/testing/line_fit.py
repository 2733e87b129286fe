"""A training that takes no time, for tests and benchmarks: it fits a line through points, and is served."""

from __future__ import annotations

from typing import Final

#: The data, a file ``points.csv``: the line's slope is 3.
POINTS: Final = "x,y\n" + "".join(f"{x},{3 * x}\n" for x in range(1, 9))
#: The main script; the data are called ``data`` in the recipe.
SCRIPT: Final = """\
import os, pathlib
lines = pathlib.Path(os.environ["TRAINMASTER_DATA_DATA"], "points.csv").read_text().split()[1:]
points = [tuple(map(float, line.split(","))) for line in lines]
slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
model = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"])
(model / "slope").write_text(str(slope))
(model / "serve.py").write_text('''
def load(model_dir):
    return float(open(model_dir + "/slope").read())

def predict(model, inputs):
    return {"y": inputs["input"] * model}
''')
"""
