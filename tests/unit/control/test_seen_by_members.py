"""Which paths of a machine members see, whatever a recipe says of where data are to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.control.attempt_actions import AttemptActions
from trainmaster.control.layout import Home
from trainmaster.control.run_state import Task
from trainmaster.spec import Recipe


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("data", "code"),
        ("../data/pets", "data"),
        ("../../r-1/pets", "pets"),
        ("..//pets", "pets"),
        (".././pets", "pets"),
        ("../../r-2/pets", None),
        ("..", None),
        ("../..", None),
        ("../../../drivers/x", None),
        ("/etc/x", None),
    ],
)
def test_nothing_above_the_run_is_seen(tmp_path, at, shown):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", "sqlite://")
    text = f"name: r\nexperiments: {{main: {{command: x, data: {{d: {{volume: pets, at: '{at}'}}}}}}}}"
    actions = AttemptActions(
        home=home, run="r-1", recipe=Recipe.from_text(text, directory=tmp_path), base={}, secrets={},
        find_models=lambda *_: [], slots=1,
    )  # fmt: skip
    context = actions.context(Task("main", 0, attempt=1))
    code = home.code_directory("r-1")
    wanted = {code, context.place.directory, *([code.parent / shown] if shown else [])}
    assert set(context.seen({})) == wanted
    assert all(Path(path).is_relative_to(code.parent) for path in context.seen({}))
