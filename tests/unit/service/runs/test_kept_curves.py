"""Curves of long files are read once, until a file of the task changes."""

from __future__ import annotations

from trainmaster.control.task.layout import RunFiles
from trainmaster.service.runs import curves
from trainmaster.spec import Recipe


def test_a_long_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "_LONG_BYTES", 0)
    monkeypatch.setattr(curves, "_MOST_KEPT", 2)
    experiment = Recipe.from_text("name: a\nexperiments: {train: {command: ls}}\n").experiments["train"]
    places = [RunFiles(tmp_path).attempt("a-1", "train", task, 1) for task in range(3)]
    for place in places:
        place.make_directories(["worker-0"])
        place.metrics("worker-0").write_text('{"step": 1, "loss": 2}\n')
    first = curves._kept_or_read(experiment, [places[0]])
    assert curves._kept_or_read(experiment, [places[0]]) is first
    with places[0].metrics("worker-0").open("a") as file:
        file.write('{"step": 2, "loss": 1}\n')
    axis, found = curves._kept_or_read(experiment, [places[0]])
    assert (axis, list(found["loss"])) == ("step", [(1, 2), (2, 1)])
    for place in places[1:]:
        curves._kept_or_read(experiment, [place])
    assert len(curves._kept) == 2, "what was looked at longest ago goes first"
    curves._kept.clear()
