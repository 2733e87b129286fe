"""Names of runs: two homes on one object store never see each other's runs. Names of files and homes: any."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

# Every id that is drawn begins as it is told in NAMES, before chance decides.
FORCED = """
import os, secrets
drawn, chance = os.environ.get("NAMES", "").split(), secrets.token_hex
def token_hex(nbytes=None):
    return drawn.pop(0)[: 2 * nbytes] if nbytes in (2, 5) and drawn else chance(nbytes)
secrets.token_hex = token_hex
"""
SAME = "abcd" * 3
COMMAND = """
    echo $TRAINMASTER_ATTEMPT: $(cat $TRAINMASTER_CHECKPOINT_DIR/who) >> $NOTES/found
    echo $WHO > $TRAINMASTER_CHECKPOINT_DIR/who
    [ "$TRAINMASTER_ATTEMPT" -ge "$LAST" ] || exit 1
    echo model of $WHO > $TRAINMASTER_OUTPUT_DIR/model
"""


class Home:
    """One of two homes, that draws the ids that it is told to."""

    def __init__(self, tm, who: str, names: str = SAME, last: int = 1) -> None:
        (tm.root / "forced").mkdir(exist_ok=True)
        (tm.root / "forced/sitecustomize.py").write_text(FORCED)
        self.tm, self.who, self.store = tm, who, tm.root / "shared"
        self.env = tm.env | {
            "TRAINMASTER_HOME": str(tm.home / who),
            "TRAINMASTER_STORE": f"file://{self.store}",
            "PYTHONPATH": str(tm.root / "forced"),
            "NAMES": names,
        }
        self.recipe = tm.recipe(
            {
                "name": "same",
                "experiments": {
                    "main": {"command": COMMAND, "retries": last - 1, "env": {"WHO": who, "LAST": str(last)}}
                },
            },
            f"{who}.yaml",
        )

    def run(self, code: int = 0):
        return self.tm.run(self.recipe, env=self.env, code=code)

    def call(self, *arguments, code: int | None = 0):
        return self.tm.call(*arguments, env=self.env, code=code)

    def model(self, summary) -> str:
        (found,) = summary["models"]
        target = self.tm.root / f"got-{self.who}"
        shutil.rmtree(target, ignore_errors=True)
        self.call("models", "get", found["uri"], target)
        return (target / "model").read_text().strip()


@pytest.fixture
def homes(tm):
    return partial(Home, tm)


def claims(home: Home) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in (home.store / "runs").glob("*.json")}


def test_an_id_that_another_home_has_is_drawn_again(tm, homes):
    one, two = homes("a"), homes("b")
    first, second = one.run(), two.run()
    assert first["run"] != second["run"]
    assert (one.model(first), two.model(second)) == ("model of a", "model of b")
    found = claims(one)
    assert set(found) == {first["run"], second["run"]}
    for home, summary in ((one, first), (two, second)):
        claim = found[summary["run"]]
        assert claim["home"] == (tm.home / home.who / "identity").read_text().strip()
        assert {"created_at", "host", "user"} <= claim.keys()


def test_without_claims_nothing_of_another_home_is_taken_or_removed(tm, homes):
    """As where two stores were made one, or the claims were cleared away."""
    one = homes("a", last=2)
    first = one.run()
    shutil.rmtree(one.store / "runs", ignore_errors=True)
    (tm.notes / "found").unlink()
    two = homes("b")
    second = two.run(code=1)
    assert second["run"] == first["run"]
    assert second["models"] == []
    message = second["experiments"]["main"].get("message", "") + two.call("status", second["run"]).out
    for home in ("a", "b"):
        assert f"home {(tm.home / home / 'identity').read_text()[:8]}" in message, message
    assert "trainmaster run" in message
    assert one.model(first) == "model of a"
    assert tm.marks("found") == ["1:"], "its checkpoint is of another home"


@pytest.mark.parametrize("last", [1, 2])
def test_a_checkpoint_of_another_home_is_never_restored(tm, homes, last):
    one = homes("a", last=2)
    one.run()
    shutil.rmtree(one.store / "runs", ignore_errors=True)
    shutil.rmtree(one.store / "models")
    (tm.notes / "found").unlink()
    two = homes("b", last=last)
    two.run(code=1)
    assert "a" not in "".join(line.partition(":")[2] for line in tm.marks("found"))


def test_a_name_is_free_again_if_its_run_never_began(tm, homes):
    home = homes("a")
    tm.write("code/file", "x")
    bad = tm.recipe(
        {"name": "same", "code": "missing", "experiments": {"main": {"command": "true"}}}, "bad.yaml"
    )
    home.call("run", bad, code=2)
    assert claims(home) == {}


def test_a_store_that_cannot_be_written_is_told_at_the_start(tm, homes):
    home = homes("a")
    home.store.write_text("a file")
    err = home.call("run", home.recipe, code=2).err
    assert "TRAINMASTER_STORE" in err
    assert not list(Path(home.env["TRAINMASTER_HOME"]).glob("runs/*"))


def test_a_home_may_have_any_name_and_is_restored_to_any_other(tm):
    """What means something in URLs, in a shell and in a table means nothing here."""
    names = ['what? it\'s 50%41 #1 "ü"', "where?to=50%41 #2 'ü'"]
    before, now = ({**tm.env, "TRAINMASTER_HOME": str(tm.root / "homes" / name)} for name in names)
    command = 'echo "$TRAINMASTER_PARAM_X" > "$TRAINMASTER_OUTPUT_DIR/a ?%41#.txt"'
    parameters = {"x": ["two\nlines 'ü'"]}
    recipe = tm.recipe({"experiments": {"main": {"command": command, "parameters": parameters}}})
    summary = tm.run(recipe, env=before)
    tm.call("server", "backup", tm.root / "50%41?.tar", env=before)
    tm.call("server", "restore", tm.root / "50%41?.tar", env=now)
    assert sorted(path.name for path in (tm.root / "homes").iterdir()) == sorted(names)
    for env in (before, now):
        listed = tm.call("models", summary["run"], env=env).out
        assert len(listed.splitlines()) == 2, listed
        tm.call("models", "get", summary["run"], tm.root / "got", env=env)
        assert (tm.root / "got/a ?%41#.txt").read_text() == "two\nlines 'ü'\n"
        shutil.rmtree(tm.root / "got")
