"""Quotes and plans of a server: what is told meanwhile, the answer as it is at home, Ctrl-C, errors."""

from __future__ import annotations

import pytest

from command_line import invoke

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_tcp import serving

from trainmaster.advisor.model.measurement import Measurement, Point, TimeShares
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import (
    Alternative,
    ClusterShape,
    ExperimentQuote,
    NextMeasurement,
    Quote,
    Rented,
)
from trainmaster.advisor.quote.quoted_target import QuotedTarget
from trainmaster.api.remote.asking import asked, options_of, plan_of, quote_of
from trainmaster.api.remote.protocol_parts import RemoteAdministration, sent_text
from trainmaster.cli import opening
from trainmaster.control.task.layout import Home
from trainmaster.service import ProfilePhase
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.spec import Recipe, Strategy
from trainmaster.spec.errors import AccessError, InterruptedByUser, RecipeError, UsageError

SHAPE = ClusterShape(Rented("m5.large", 2, True, "aws", "eu", 0.1), Rented("c5.large", 1), 2, 3)
POINT = Point(Strategy.PS_ASYNC, 2, step_time_s=0.5)
ONE = ExperimentQuote(
    "main",
    SHAPE,
    Interval(1, 2, 3),
    Interval(4, 5, 6),
    Interval(0.1, 0.2, 0.3),
    "the network",
    (Alternative(SHAPE, 2.0, 5.0),),
    0.25,
    1,
    0,
    NextMeasurement(4, "m5.large", 60.0, 0.1, 2.0, 1.5, Interval(1, 2, 2.5)),
    7,
    ("a note",),
    "f",
    (Measurement(POINT, time_shares=TimeShares(computing=0.6)),),
    target=QuotedTarget("main", "acc >= 0.9", 100.0, 0.7, {"p5": 20.0, "p50": 40.0, "p95": None}, 1),
)
QUOTE = Quote(
    {"main": ONE}, Interval(1, 2, 3), None, "quote", "aws", "2026-01-01", {"eval": "no steps"}, ("n",)
)
PROGRESS = {"experiment": "main", "workers": 2, "phase": "measuring", "elapsed_s": 1.0, "left_s": None,
            "steps": 3, "step_time_s": 0.5, "what_comes_later": 1}  # fmt: skip


class Answers:
    """A connection, as far as these tests ask."""

    url = "http://s"

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def post(self, path, body, **_):
        self.asked.append(("POST", path, body))
        return self.answers.pop(0)

    def get(self, path, **_):
        return self.answers.pop(0)

    def ask(self, *asked):
        self.asked.append(asked)

    def sleep(self, _):
        pass


def state(told=(), progress=None, answer=None, error=None):
    is_over = answer is not None or error is not None
    return {"id": "quote-1", "told": list(told), "progress": progress, "answer": answer, "error": error,
            "state": "DONE" if is_over else "RUNNING"}  # fmt: skip


def sent():
    yield "note: left out: x"
    return {"recipe": "r", "code": "c"}


def quoted(*answers):
    connection = Answers(*answers)
    return connection, asked(connection, "/quotes", sent, {"policy": "quote"}, quote_of)


def test_what_is_told_comes_once_and_the_answer_last():
    whole = QUOTE.as_dict()
    connection, stream = quoted(state(["a"]), state(["a", "b"], PROGRESS), state(["a", "b"], None, whole))
    *told, page, answer = list(stream)
    assert page == "the page of this quote, for a week, and for your team: http://s/quotes/quote-1"
    told.append(answer)
    assert [told[0], told[1], told[2]] == ["note: left out: x", "a", "b"]
    assert (told[3].phase, told[3].steps) == (ProfilePhase.MEASURING, 3)
    assert connection.asked == [("POST", "/quotes", {"recipe": "r", "code": "c", "policy": "quote"})]
    made = told[4]
    assert made.as_dict() == whole
    assert made.to_json() == QUOTE.to_json()
    assert (made.main.cluster, made.time_s, made.cost_usd) == (SHAPE, Interval(1, 2, 3), None)
    assert made.main.measured[0].point.workers == 2
    assert made.main.measured[0].time_shares == ONE.measured[0].time_shares
    assert Quote.as_dict(made)["pareto"] == whole["pareto"]
    assert made.main.target == ONE.target


def test_what_a_later_server_adds_changes_nothing():
    whole = QUOTE.as_dict() | {"later": 1}
    whole["experiments"]["main"]["cluster"]["worker"]["later"] = 1
    assert quote_of(whole).main.cluster == SHAPE


def test_what_an_earlier_server_does_not_say_is_not_needed():
    old = {name: each for name, each in QUOTE.as_dict().items() if name not in ("unknown", "places", "queue")}
    assert (quote_of(old).unknown, quote_of(old).time_s) == (None, Interval(1, 2, 3))
    starts = {"unknown": {"starts_s": {"p5": 1.0, "p50": 2.0, "p95": 3.0}, "ends": "", "words": ""}}
    assert quote_of(old | starts).unknown.starts_s == Interval(1, 2, 3)


def test_ctrl_c_ends_the_measurement_there():
    connection, stream = quoted(state(["a"]), state())
    assert stream.interrupt() == 0, "nothing is asked for yet"
    assert [next(stream), next(stream)] == ["note: left out: x", "a"]
    connection, stream = quoted(state(["a"]), state(), state())
    next(stream), next(stream)
    assert stream.interrupt() == 1
    with pytest.raises(InterruptedByUser):
        list(stream)
    assert connection.asked[-1] == ("DELETE", "/quotes/quote-1", {})


def test_a_refusal_is_raised_with_its_hint():
    _, stream = quoted(state(error={"title": "nothing is feasible", "hint": "Give more time."}))
    with pytest.raises(UsageError, match=r"nothing is feasible\nGive more time"):
        list(stream)


@pytest.mark.parametrize(
    ("lines", "options", "line"),
    [
        (["name: job", "experiments:", "  main: {command: make, secrets: [KEY]}"], {}, "3:34"),
        (["experiments:", "  main: {command: make, secrets: [KEY]}"], {"provider": "lab"}, "2:34"),
    ],
)
def test_what_a_server_finds_wrong_is_told_of_the_file(lines, options, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("\n".join(lines))
    recipe = Recipe.read("job.yaml", **options)
    key = "experiments.main.secrets"
    there = Recipe.from_text(sent_text(recipe)["recipe"])
    (mistake,) = there.refused(
        [(("experiments", "main", "secrets"), UsageError("no value for KEY"))]
    ).mistakes
    told = {"line": mistake.line, "column": mistake.column, "key": key, "message": mistake.message}
    error = {"error": "RecipeError", "title": "x", "mistakes": [told]}
    connection = Answers(state(error=error))
    stream = asked(connection, "/plans", sent, {}, plan_of, recipe=recipe)
    with pytest.raises(RecipeError, match=rf"^job\.yaml:{line}: {key}: no value for KEY$"):
        list(stream)


def test_a_plan_has_its_quote():
    found = {"id": "p", "provider": "aws", "most_usd_per_hour": 0.5, "lines": ["l"], "notes": [],
             "quote": QUOTE.as_dict()}  # fmt: skip
    plan = plan_of(found)
    assert (plan.id, plan.most_usd_per_hour, plan.lines, plan.notes) == ("p", 0.5, ("l",), ())
    assert plan.quote.main.bottleneck == "the network"
    assert plan_of({**found, "quote": None}).quote is None


def test_files_of_options_are_sent_as_their_text(tmp_path):
    (tmp_path / "m.csv").write_text("a,b\n")
    found = options_of(QuoteOptions(policy="lookup", measurements=tmp_path / "m.csv"))
    assert (found["policy"], found["measurements"], found["bandwidth"]) == ("lookup", "a,b\n", None)
    with pytest.raises(UsageError, match="--bandwidth"):
        options_of(QuoteOptions(bandwidth=tmp_path / "none.csv"))


def test_commands_that_are_configured_here_are_sent_to_no_server(tmp_path, monkeypatch):
    """Neither by requests of runs nor by `doctor`; what else is configured is."""
    from trainmaster.spec import read_recipe

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "trainmaster").mkdir(parents=True)
    (tmp_path / "config" / "trainmaster" / "config.toml").write_text(
        "provider = 'lab'\nnotify = [{to = 'cat'}]\n"
    )
    (tmp_path / "recipe.yaml").write_text("experiments: {a: {command: make}}\n")
    recipe = read_recipe(tmp_path / "recipe.yaml")
    assert recipe.notify
    asked_for = []

    class Server:
        def post(self, path, body, **_):
            asked_for.append((path, body))
            return {"findings": []}

    RemoteAdministration(Server()).examine_places(["lab"], recipe)
    RemoteAdministration(Server()).examine_places(["lab"])
    assert asked_for[1] == ("/doctor", {"places": ["lab"]})
    again = Recipe.from_text(asked_for[0][1]["recipe"])
    assert (again.provider, again.notify) == ("lab", ())
    assert asked_for[0][1]["recipe"] == sent_text(recipe)["recipe"]


def test_who_may_not_run_is_told_so_and_not_a_number(tmp_path, monkeypatch):
    """The server is asked first whether it has the code, to which it answers without words."""
    monkeypatch.setattr(opening, "_is_local", False)
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    recipe = tmp_path / "project" / "recipe.yaml"
    recipe.write_text("experiments: {main: {command: 'true'}}\n")
    home = Home(
        tmp_path / "home", tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db"
    )
    with serving(home, ["read"]) as connection:
        monkeypatch.setenv("TRAINMASTER_URL", connection.url)
        monkeypatch.setenv("TRAINMASTER_TOKEN", connection._token)
        monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "laptop"))
        assert "none within a week" in invoke("quote", "--list").stderr
        with pytest.raises(UsageError, match="not both"):
            invoke("quote", recipe, "--list")
        for verb in ("run", "quote"):
            with pytest.raises(AccessError, match="may not send, approve or end runs"):
                invoke(verb, recipe)
