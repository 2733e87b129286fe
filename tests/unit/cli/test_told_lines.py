"""What single verbs tell, with a client that answers at once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import ExplainedPhase
from trainmaster.advisor.quote.unknown_time import UnknownTime
from trainmaster.cli import budget, driving, labels, metrics, models, output, run, services, status, volume
from trainmaster.cli.plotting import draw_quote
from trainmaster.cli.renting import explain
from trainmaster.service.models.model_names import find_model
from trainmaster.spec.errors import AccessError, NotFoundError, UsageError
from trainmaster.spec.units import next_month


def test_columns_are_aligned_by_what_a_terminal_shows():
    lines = output.table(
        ["label", "runs"], [["名前", "1"], ["nai\u0308ve", "2"], ["plain", "3"]]
    ).splitlines()
    assert lines == ["label  runs", "名前   1", "nai\u0308ve  2", "plain  3"]


def test_of_several_models_the_commands_are_told(monkeypatch):
    rows = [{"experiment": "main", "task": task, "uri": f"file:///s/{task}"} for task in (0, 1)]
    monkeypatch.setattr("trainmaster.db.queries.models", lambda *_: rows)

    def fetch(name, _directory):
        return find_model(None, name, run="r-1")

    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: SimpleNamespace(fetch_model=fetch))
    with pytest.raises(UsageError) as caught:
        models.get("latest", Path("model"))
    assert caught.value.hint.splitlines() == [
        "Name one of them, or all of one experiment:",
        "  trainmaster models get r-1/main/best model",
        "  trainmaster models get r-1/main/0 model",
        "  trainmaster models get r-1/main/1 model",
        "  trainmaster models get r-1/main model",
    ]


def test_all_models_of_an_experiment_come_into_a_folder_each(monkeypatch, tmp_path, capsys):
    left = [("infer", 1), ("infer", 0), ("train", 0)]
    got = []

    def fetch(name, directory):
        got.append((name, directory.relative_to(tmp_path).as_posix()))
        return SimpleNamespace(files=1, total_bytes=7)

    client = SimpleNamespace(
        resolve=lambda _: "r-1",
        models=lambda _: [SimpleNamespace(experiment=name, task=task) for name, task in left],
        fetch_model=fetch,
    )
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: client)
    models.get("latest/infer", tmp_path / "all")
    assert got == [("r-1/infer/0", "all/0"), ("r-1/infer/1", "all/1")]
    assert "2 models, 2 files, 14 bytes" in capsys.readouterr().err
    (tmp_path / "all").mkdir()
    (tmp_path / "all/mine").touch()
    with pytest.raises(UsageError, match="is not empty"):
        models.get("latest/infer", tmp_path / "all")
    models.get("latest/train", tmp_path / "one")
    assert got[2:] == [("latest/train", "one")]


def test_services_that_are_over_are_left_out_for_people_only(monkeypatch, capsys):
    """A script gets what REST tells."""
    over = {"name": "old", "state": "DONE", "version": None, "model": None, "replicas": [], "run": "r-1"}
    client = SimpleNamespace(services=SimpleNamespace(listed=lambda: [over]))
    monkeypatch.setattr(services, "open_client", lambda: client)
    services.list_services(as_json=True, over=False)
    said = capsys.readouterr()
    assert ([each["name"] for each in json.loads(said.out)["services"]], said.err) == (["old"], "")
    services.list_services(as_json=False, over=False)
    said = capsys.readouterr()
    assert (said.out, "left out: 1 that ended" in said.err) == ("", True)


def test_a_picture_of_what_is_not_known_is_not_the_fault_of_a_policy():
    unknown = SimpleNamespace(experiments={}, unknown=UnknownTime(Interval(1, 2, 3)), policy="quote")
    with pytest.raises(UsageError, match="--plot: nothing is known of the job yet"):
        draw_quote(unknown, "job", Path("a.svg"))


def test_a_run_without_metrics_is_told_how_tasks_report(monkeypatch, capsys):
    client = SimpleNamespace(resolve=lambda run: run, metrics=lambda _: [])
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: client)
    metrics.export("r-1", to_csv="-")
    assert "trainmaster.report(step=10, loss=0.5)" in capsys.readouterr().err
    metrics.export("r-1", as_json=True)
    said = capsys.readouterr()
    assert (json.loads(said.out), "trainmaster.report" in said.err) == ({"run": "r-1", "reports": []}, True)


def test_no_share_of_the_doubt_is_less_than_nothing():
    span = Interval(1.0, 1.0, 2.0)
    phases = [ExplainedPhase("staging", span, -0.001), ExplainedPhase("steps", span, 1.001)]
    told: list[str] = []
    one = SimpleNamespace(name="main", phases=phases, more_measuring=None)
    explain(SimpleNamespace(experiments={"main": one}), told.append)
    assert "-0%" not in told[0]
    assert " 0%" in told[0]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pets@1", "pets@1"),
        ("pets@v1", "pets@v1"),
        ("s3://me@b/pets@2/", "s3://me@b/pets@2/"),
        ("pets", "/s/pets with all its versions"),
    ],
)
def test_no_version_of_a_volume_goes_unasked(name, what, monkeypatch):
    removed: list[tuple[str, bool]] = []

    def remove(text, *, whole=False):
        if whole or "@" in text:
            removed.append((text, whole))
        return SimpleNamespace(url=f"/s/{text}", name=text, removed=1)

    monkeypatch.setattr(volume, "open_client", lambda **_: SimpleNamespace(remove_volume=remove))
    monkeypatch.setattr(output, "can_ask", lambda: False)
    with pytest.raises(UsageError, match="there is no terminal to ask on") as caught:
        volume.rm(name)
    assert "--yes" in caught.value.hint
    asked: list[str] = []
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr(output, "says_yes", lambda question: asked.append(question))
    with pytest.raises(UsageError, match="you did not agree"):
        volume.rm(name)
    assert (asked, removed) == ([f"Remove {what}, for good?"], [])
    volume.rm(name, yes=True)
    assert removed == [(name, name == "pets")]


def test_of_pods_that_differ_in_their_names_one_is_shown(capsys):
    def pod(name: str, image: str = "python") -> dict[str, object]:
        parameters = {"kind": "Pod", "metadata": {"name": name, "labels": {}}, "spec": {"image": image}}
        return {"service": "kubernetes", "operation": "create pod", "parameters": parameters}

    bucket = {"service": "s3", "operation": "PutObject"}
    requests = [pod("w-0"), pod("w-1"), pod("w-2"), pod("ps-0", "slim"), bucket, bucket]
    run._show_plan({"notes": [], "requests": requests, "processes": []}, as_json=False)
    out = capsys.readouterr().out
    heads = [line for line in out.splitlines() if line.startswith("#")]
    assert heads == ["# create pod x 3", "# create pod", "# PutObject x 2"]
    assert "w-0" in out
    assert "w-1" not in out


def test_a_name_that_no_run_has_is_told_with_the_nearest():
    curves = [{"key": "loss", "parameters": {"lr": 0.1}}]

    def listed(limit=None, *, where=""):
        if where in ("`loss`", "label:project"):
            return {"runs": [{"run": "r-1"}]}
        return {"runs": [] if where else [{"run": "r-1", "labels": {"project": "x"}}]}

    client = SimpleNamespace(listed=listed, curves=lambda *_, **__: curves)
    said = labels.none_fits(client, "losss < 1 and loss > 0 and (label:projet = x or sate = y) and zz")
    assert said.splitlines()[1:] == [
        "no run has 'losss': did you mean 'loss'?",
        "no run has 'projet': did you mean 'project'?",
        "no run has 'sate': did you mean 'state'?",
        "no run has 'zz'",
    ]
    assert labels.none_fits(client, "loss < 0 or state = DONE") == "no run fits: loss < 0 or state = DONE"
    with pytest.raises(NotFoundError, match="did you mean 'loss'"):
        labels.selected(client, None, None, "losss < 1")


def test_runs_that_fit_a_condition_are_asked_for_best_first_and_shown_with_what_it_names(capsys):
    line = {"state": "DONE", "reason": "SUCCEEDED", "seconds": 1.0, "cost_usd": 0.0, "driver": None}
    line |= {"created_at": 0.0, "driven": False}
    told = [{"metric:loss": 0.25, "param:lr": 1}, {"metric:loss": 0.5, "param:lr": [0.1, 0.2]}, {}]
    runs = [
        line | {"run": run} | ({"values": its} if its else {}) for run, its in zip("bac", told, strict=True)
    ]
    asked = []
    client = SimpleNamespace(listed=lambda *_, **how: asked.append(how) or {"runs": runs, "older": 0})
    status._show_runs(client, None, "loss > 0")
    assert asked == [{"where": "loss > 0", "sort": "best"}]
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["loss", "lr"]
    assert [each.split()[0] for each in lines] == ["b", "a", "c"]
    assert lines[1].split()[-4:] == ["0.5", "0.1", "to", "0.2"]


def test_a_budget_says_until_when_its_money_is(monkeypatch, capsys):
    found = {"spent_usd": 12.4, "reserved_usd": 0.0, "left_usd": 187.6, "monthly_usd": 200.0}
    monkeypatch.setattr(budget, "open_administration", lambda: SimpleNamespace(budget=lambda _team: found))
    budget.budget(None, None, as_json=False)
    first = next_month(time.time())
    assert f"$187.60 left of $200.00 until {first} (UTC)" in capsys.readouterr().err
    found |= {"spent_usd": 202.5, "left_usd": -2.5}
    budget.budget(None, None, as_json=False)
    assert f"$2.50 beyond $200.00 until {first} (UTC)" in capsys.readouterr().err


@pytest.mark.parametrize(("stream", "prints"), [("stdout", output.show), ("stderr", output.say)])
def test_what_others_have_named_gives_a_terminal_no_orders(monkeypatch, capsys, stream, prints):
    """A task says the names of metrics, a member of the team a note: in a file they are as they are."""
    text = "note: \x1b]52;c;cm0=\x07\nlo\x9b2Jss"
    prints(text)
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    prints(text)
    shown = "note: \\x1b]52;c;cm0=\\x07\nlo\\x9b2Jss"
    assert getattr(capsys.readouterr(), stream[3:]) == f"{text}\n{shown}\n"


def test_who_may_not_watch_a_run_any_more_is_told_that_it_goes_on(capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    ended = AccessError("the token has expired", "Ask for a new one.")

    def drive_run(*_):
        yield "main: 1 task"
        raise ended

    client = SimpleNamespace(drive_run=drive_run)
    accepted = SimpleNamespace(run="job-1", notes=(), rents=False, server="http://there", moves=False)
    with pytest.raises(AccessError, match="has expired"):
        driving.see_to_end(client, accepted, "", as_json=False)
    assert "job-1 goes on; `trainmaster logs -f job-1`" in capsys.readouterr().err
