"""Quotes on machines that an earlier run has kept, for `run` and for `quote`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from command_line import invoke
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.quote import Quote
from trainmaster.cluster.record import ClusterState, Machine, new_record
from trainmaster.control.decide.effects import PhaseDuration
from trainmaster.control.loop.recording import RecordedPhase
from trainmaster.control.task.environment_hashes import environment_hashes
from trainmaster.db import AcceptedRun
from trainmaster.service.quotes.history import new_row
from trainmaster.service.quotes.phase_records import phase_rows
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.renting.cheapest import plans_of
from trainmaster.service.renting.kept_clusters import warm_clusters
from trainmaster.service.renting.offer import RentalOffer
from trainmaster.service.renting.plan_run import plan_run
from trainmaster.service.renting.provider_check import planned_requests
from trainmaster.service.service import Service
from trainmaster.spec import Recipe, Strategy, read_recipe
from trainmaster.spec.errors import UsageError

PRICES = "provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,spot,as_of\n"
ROWS = "aws,r1,small,2,8,0.10,,{day}\naws,r1,large,2,8,0.11,,{day}\n"

GANG = """\
    framework: pytorch
    distributed: {{strategy: allreduce, workers: {workers}}}
    hardware: {{instance: small}}
    batch: {{global: 24}}
    steps: 2000
"""


class World:
    """A home with a job that takes a minute, a price list, and machines that runs have kept."""

    def __init__(self, service: Service, directory: Path) -> None:
        self.service, self.directory = service, directory
        prices = directory / "prices.csv"
        prices.write_text(PRICES + ROWS.format(day=datetime.now(UTC).date()))
        self.environ = {"TRAINMASTER_CATALOGUE": str(prices)}

    def recipe(self, more: str = "", main: str = "") -> Recipe:
        path = self.directory / "recipe.yaml"
        path.write_text(
            f"name: job\nprovider: aws\n{more}\nexperiments:\n  main:\n    command: python train.py\n{main}"
        )
        recipe = read_recipe(path)
        key = self.service.measurements(recipe)["main"].fingerprint
        seen = Measurement(None, duration_s=60.0, startup_s=1.0, measured_at=1.0)
        rows = [new_row(f"profile-{number}", key, "main", None, seen) for number in range(3)]
        self.service.database.add_measurement(*rows)
        return recipe

    def gang(self, workers: str, more: str = "") -> Recipe:
        """A job that some workers do in 400 s, 220, 170, 140 and 120 s: 1, 2, 3, 4 and 6 of them."""
        (self.directory / "train.py").touch()
        recipe = self.recipe(more, GANG.format(workers=workers))
        key = self.service.measurements(recipe)["main"].fingerprint
        for n, step_s in {1: 0.2, 2: 0.11, 3: 0.085, 4: 0.07, 6: 0.06}.items():
            sends = {"bytes_in": 1e5, "bytes_out": 1e5}
            point = Point(Strategy.ALLREDUCE, n, n, local_batch=24 / n, step_time_s=step_s, **sends)
            seen = Measurement(point, startup_s=1.0, steps_done=100, offer="small", measured_at=2.0)
            self.service.database.add_measurement(new_row(f"run-{n}", key, "main", None, seen))
        return recipe

    def quoter(self, offers: Any = None) -> Quoter:
        return Quoter(self.service, lambda _: None, None, offers, measures=False)

    def plan(self, recipe: Recipe, **how: Any) -> RentalOffer:
        return plan_run(self.service, recipe, self.environ, self.quoter, **how)

    def quote(self, recipe: Recipe) -> Quote:
        return self.quoter().quote(recipe, self.environ, QuoteOptions())

    def keep(self, recipe: Recipe, run: str = "before") -> None:
        """An earlier run of a recipe has kept the machines that it would rent."""
        limitless = recipe.model_copy(update={"budget": None})
        (plan,) = self.plan(limitless).plans
        rental = plan.roles[0].rentals[0]
        machines = tuple(
            Machine(f"worker-{n}", "worker", "t", rental, f"i-{n}", started_at=time.time() - 600)
            for n in range(plan.roles[0].count)
        )
        home = self.service.home.identity()
        record = replace(
            new_record(run, plan, home, 600.0),
            state=ClusterState.KEPT,
            machines=machines,
            kept_until=time.time() + 300,
        )
        database = self.service.database
        new = AcceptedRun(
            run, "n", recipe.model_dump_json(), "/r", "aws", str(self.directory), "file:///s", [("main", 1)],
            clusters=[record.as_row()],
        )  # fmt: skip
        database.release(database.create_run(new, time.time()), time.time())
        with database.engine.begin() as connection:
            connection.execute(text("UPDATE run SET state = 'DONE' WHERE id = :run"), {"run": run})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    environ = {"TRAINMASTER_HOME": str(tmp_path / "home"), "TRAINMASTER_CACHE": str(tmp_path / "cache")}
    with closing(Service.from_environment(environ)) as service:
        yield World(service, tmp_path)


def phases(made: Quote | None) -> dict[str, float]:
    assert made is not None
    return {each.name: each.time_s.p50 for each in made.main.phases}


def test_every_door_quotes_them_without_a_wait_and_says_so(world: World) -> None:
    recipe = world.recipe()
    cold, first = world.quote(recipe), world.plan(recipe)
    assert (cold.warm, "machines" in phases(cold)) == ((), True)
    assert any(line.endswith("with the wait for the machines") for line in first.lines)
    world.keep(recipe)
    warm, then = world.quote(recipe), world.plan(recipe)
    assert then.quote is not None
    for made in (warm, then.quote):
        assert made.warm == ("main",)
        assert phases(made)["machines"] < 3 < phases(cold)["machines"], "until it has them again"
    assert warm.as_dict()["warm"] == ["main"]
    assert warm.notes[0] == "main: an earlier run keeps such machines warm: they are not waited for"
    assert any(line.endswith("on machines that are still warm") for line in then.lines)


def test_what_is_there_is_named_and_quoted_though_others_would_be_rented(world: World) -> None:
    """A run takes it over: it is neither asked for the price of others, nor quoted by that."""
    first = world.plan(world.recipe())
    assert first.lines[0] == "main: 1 x small in r1 at $0.1195 per hour"
    world.keep(world.recipe("", "    hardware: {instance: large}\n"))
    then = world.plan(world.recipe())
    assert then.lines[0] == "main: 1 x large in r1 at $0.1295 per hour"
    assert then.quote is not None
    assert then.quote.warm == ("main",)
    assert then.quote.main.cluster.worker.instance == "large"


def test_a_job_of_which_nothing_is_known_is_priced_by_what_is_there_too(
    world: World, command_line: Any
) -> None:
    """Its run takes these over, and so they are what is named, asked for and set aside."""
    world.keep(world.recipe("", "    hardware: {instance: large}\n"))
    recipe = world.recipe()
    world.service.database.write(lambda made, _: made.execute(text("DELETE FROM measurement")))
    made, quoted = world.plan(recipe), world.quoter().estimate(recipe, world.environ)[0]
    assert made.quote is None
    assert made.unknown is not None
    assert made.unknown.starts_s.p95 < 10, "they are not waited for"
    assert made.lines[0] == "main: 1 x large in r1 at $0.1295 per hour"
    assert made.usd_per_hour == pytest.approx(0.1295, rel=1e-3)
    assert [way.instance_type for way in made.plans[0].roles[0].rentals] == ["large", "small"]
    assert quoted is not None
    assert (quoted.warm, quoted.main.cluster.worker.instance) == (("main",), "large")
    assert plans_of(world.service, recipe, world.environ) == made.plans, "of each place of a list"
    said = command_line("quote", "--no-measure")
    assert "main: 1 x large" in said.stdout, said
    requests, notes = planned_requests(world.service, recipe, world.environ)
    assert (requests, "main: an earlier run keeps such machines warm" in notes[0]) == ([], True)


@pytest.mark.parametrize("limit", ["deadline: 180s", "total: $0.012"])
def test_a_limit_that_only_they_keep_is_kept(world: World, limit: str) -> None:
    """With the wait for new ones, or what that costs, it is refused."""
    recipe = world.recipe(f"budget: {{{limit}}}")
    with pytest.raises(NoFeasibleQuote):
        world.plan(recipe)
    world.keep(recipe)
    made = world.plan(recipe)
    assert made.quote is not None
    assert made.quote.warm == ("main",)
    other = "    hardware: {instance: large}\n"
    with pytest.raises(NoFeasibleQuote):
        world.plan(world.recipe(f"budget: {{{limit}}}", other))


@pytest.mark.parametrize("workers", ["1..8", "auto"])
def test_as_many_workers_are_taken_as_fill_what_is_there_where_that_is_better(
    world: World, workers: str
) -> None:
    """More of them would be faster, if they had not to be waited for first."""
    fastest = "objective: fastest"
    assert world.plan(world.gang(workers, fastest)).plans[0].roles[0].count == 6
    world.keep(world.gang("4"))
    made = world.plan(world.gang(workers, fastest))
    assert made.quote is not None
    assert (made.plans[0].roles[0].count, made.quote.warm) == (4, ("main",))
    assert made.recipe.experiments["main"].distributed.workers == 4


def test_the_command_line_quotes_as_many_too(world: World, command_line: Any) -> None:
    world.keep(world.gang("4"))
    world.gang("auto", "objective: fastest")
    said = command_line("quote", "--no-measure")
    assert "main: 4 x small" in said.stdout, said
    assert "main: an earlier run keeps such machines warm" in said.stdout, said
    assert re.search(r"rests on 5 measurements; [2-9]\d* clusters compared", said.stdout), said


def test_a_few_that_are_there_are_not_taken_where_more_are_better_in_spite_of_the_wait(world: World) -> None:
    world.keep(world.gang("1"))
    made = world.plan(world.gang("1..8", "objective: fastest"))
    assert made.quote is not None
    assert (made.plans[0].roles[0].count, made.quote.warm) == (6, ())


def test_a_deadline_that_only_they_keep_is_kept_with_an_open_number_of_workers(world: World) -> None:
    deadline = "budget: {deadline: 260s}"
    with pytest.raises(NoFeasibleQuote):
        world.plan(world.gang("1..8", deadline))
    world.keep(world.gang("2"), "two")
    with pytest.raises(NoFeasibleQuote):
        world.plan(world.gang("1..8", deadline))
    world.keep(world.gang("3"), "three")
    made = world.plan(world.gang("1..8", deadline))
    assert made.quote is not None
    assert (made.plans[0].roles[0].count, made.quote.warm) == (3, ("main",))


def test_a_cap_need_not_pay_for_the_boot_of_what_is_there(world: World) -> None:
    """Also where nothing is known of the job: by the price of these machines, and not of the cheapest."""
    path = world.directory / "other.yaml"
    path.write_text(
        "name: job\nprovider: aws\nbudget: {total: $0.0075}\nexperiments: {main: {command: python new.py}}\n"
    )
    recipe = read_recipe(path)
    with pytest.raises(UsageError, match="used up before anything has run"):
        world.plan(recipe)
    world.keep(recipe)
    made = world.plan(recipe)
    assert made.quote is None
    assert made.unknown is not None
    assert made.unknown.starts_s.p95 < 10, made.unknown


def test_a_run_goes_on_with_what_is_left_of_its_cap_if_machines_are_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left would not pay for the boot of new ones."""
    (world.directory / "train.py").touch()
    world.keep(recipe := world.recipe("budget: {total: $0.0075}", "    hardware: {instance: small}\n"), "run")
    with world.service.database.engine.begin() as connection:
        connection.execute(text("UPDATE cluster SET state = 'ENDED', data = json_remove(data, '$.machines')"))
    for looks in ("sessions.check_still_there", "sessions.materialise", "provider_connection.check_provider"):
        monkeypatch.setattr(f"trainmaster.service.driving.{looks}", lambda *_: None)
    with pytest.raises(UsageError, match=r"of \$0.0075, run has cost \$0: to start"):
        world.service.resume("run", world.environ)
    world.keep(recipe, "other")
    session = world.service.resume("run", world.environ)
    assert session is not None
    world.service.database.release(session.lease, time.time())


def test_only_a_setup_that_the_last_run_has_made_there_is_there(world: World) -> None:
    """Not one that was seen on such a machine at some time."""
    recipe = world.recipe(main="    setup: pip install x\n")
    other = world.recipe(main="    setup: pip install y\n")
    code = recipe.directory / recipe.code
    for each in (recipe, other):
        (content,) = environment_hashes(each.experiments.values(), code)
        took = RecordedPhase("r/main/0/1", "main", PhaseDuration("setup", content, 60.0), "small", 1.0)
        world.service.database.add_measurement(*phase_rows("r", [took]))
    assert phases(world.plan(recipe).quote)["setup"] == pytest.approx(60, rel=0.1)
    world.keep(recipe)
    made = world.plan(recipe).quote
    assert "setup" not in phases(made)
    assert made is not None
    assert not any("setup" in note for note in made.notes), made.notes
    assert phases(world.plan(other).quote)["setup"] == pytest.approx(60, rel=0.1)


def test_what_is_kept_afterwards_is_not_given_back_and_says_what_it_costs(world: World) -> None:
    recipe = world.recipe()
    given_back, kept = world.plan(recipe), world.plan(recipe, keep_s=1800.0)
    assert "giving back" in phases(given_back.quote)
    assert "giving back" not in phases(kept.quote)
    (said,) = set(kept.lines) - set(given_back.lines) - {kept.lines[-2]}
    told = "afterwards machines are kept warm for 30 min, which costs up to $0.065 more"
    assert said == f"{told}; giving back is not counted"


@pytest.fixture
def command_line(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a verb with the recipe, in this home."""
    home = world.service.home
    here = {"TRAINMASTER_HOME": home.root, "TRAINMASTER_CACHE": home.cache, "COLUMNS": 200}
    here |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in (world.environ | here).items():
        monkeypatch.setenv(name, str(value))
    return lambda verb, *how: invoke("--local", verb, world.directory / "recipe.yaml", *how)


def offered(command_line: Any, capfd: pytest.CaptureFixture[str], *how: str) -> tuple[str, str]:
    """What `run` says where nobody can agree, and why it has not begun."""
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("contextlib.redirect_stderr", lambda _: nullcontext())
        with pytest.raises(UsageError) as refused:
            command_line("run", *how)
    return capfd.readouterr().err, str(refused.value)


@pytest.mark.parametrize("cap", ["", "budget: {total: $5}"])
def test_quote_and_run_say_alike_what_keeping_costs(
    world: World, command_line: Any, capfd: pytest.CaptureFixture[str], cap: str
) -> None:
    world.gang("2", cap)
    said = command_line("quote", "--no-measure", "--keep", "30m").stdout
    texts = [said, offered(command_line, capfd, "--keep", "30m")[0]]
    quoted, run = ([each for each in text.splitlines() if "kept warm for 30 min" in each] for text in texts)
    assert len(quoted) == 1, texts
    assert quoted[0].removeprefix("note: ") == run[0], texts
    assert ("within budget.total" in run[0]) == bool(cap)
    assert "kept warm" not in command_line("quote", "--no-measure").stdout


def test_a_script_is_told_the_price_of_what_would_be_chosen(
    world: World, command_line: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """And none where that would be measured first: it is not that of the fewest workers."""
    world.gang("1..8", "objective: fastest")
    lines, why = offered(command_line, capfd)
    assert "main: 6 x small" in lines
    assert "this rents machines for at most $0.72" in why, why
    (world.directory / "train.py").unlink()
    (world.directory / "other.py").touch()
    recipe = world.directory / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("train.py", "other.py"))
    lines, why = offered(command_line, capfd)
    assert why.startswith("main: how many workers it takes, and so its price, is measured first"), why
    assert "$" not in lines, lines


def test_no_queue_is_asked_about_the_only_machines_that_there_may_be_if_they_are_warm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, asked = world.recipe(), list[bool]()
    of_known = Quoter._of_known

    def quoting(self: Quoter, recipe: Recipe, options: QuoteOptions, **given: Any) -> Quote:
        asked.append(options.asks_queue and not options.warm)
        return of_known(self, recipe, options, **given)

    monkeypatch.setattr(Quoter, "_of_known", quoting)
    queueing = SimpleNamespace(queues=True)
    monkeypatch.setattr("trainmaster.service.quotes.warm_machines.capabilities_of", lambda _: queueing)
    world.plan(recipe)
    assert asked == [True]
    world.keep(recipe)
    asked.clear()
    world.plan(recipe)
    assert asked == [False, False]


def test_a_cluster_is_there_for_one_plan_of_its_team(world: World) -> None:
    recipe = world.recipe()
    world.keep(recipe)
    (plan,) = world.plan(recipe).plans
    both = (plan, replace(plan, name="other"))
    assert warm_clusters(world.service, both, None).keys() == {"main"}
    assert not warm_clusters(world.service, both, "red")
    assert not warm_clusters(world.service, [replace(plan, roles=(replace(plan.roles[0], count=2),))], None)
