"""What is put before the user before anything is rented: machines, price, estimate, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from trainmaster.advisor.market.memory_floor import Memory
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.infeasible import no_feasible
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import Alternative, ClusterShape, ExperimentQuote, Quote, Rented
from trainmaster.advisor.quote.unknown_time import UnknownTime
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import Home
from trainmaster.providers import StalePrices
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.candidate_offers import candidate_offers_of
from trainmaster.service.quotes.prices import CATALOGUE
from trainmaster.service.quotes.quote_record import QuoteRecord
from trainmaster.service.quotes.worker_counts import with_fewest, with_workers
from trainmaster.service.renting.cheapest import check_total, least_usd
from trainmaster.service.renting.plan_run import plan_run
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import UsageError

TODAY = datetime.now(UTC).date()
COLUMNS = "provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,spot,as_of"
ROWS = (
    "{provider},r1,small,2,8,0.1,,{day}",
    "{provider},r1,large,4,16,0.2,,{day}",
    "{provider},r2,small,2,8,0.12,,{day}",
    "other,r1,cheap,2,8,0.001,,{day}",
)


#: A disk of 64 GiB in a region that nobody knows, and an address.
EXTRAS = 64 * 0.152 / (28 * 24) + 0.005


class World:
    """A home, a recipe, a price list; and somebody who quotes what he was told to."""

    def __init__(self, directory):
        self.directory = directory
        environ = {"TRAINMASTER_HOME": str(directory / "home"), "TRAINMASTER_CACHE": str(directory / "cache")}
        self.home = Home.from_environment(environ)
        self.environ = {}
        self.quote = None
        self.measured = {}
        self.asked = []

    def recipe(self, experiments=None, provider="aws", **top):
        path = self.directory / "recipe.yaml"
        experiments = experiments or {"main": {}}
        named = {name: {"command": "true", **keys} for name, keys in experiments.items()}
        path.write_text(json.dumps({"name": "job", "provider": provider, "experiments": named, **top}))
        return read_recipe(path)

    def prices(self, *rows, provider="aws", day=TODAY):
        text = "\n".join([COLUMNS, *(row.format(provider=provider, day=day) for row in rows or ROWS)])
        file = self.directory / "prices.csv"
        file.write_text(text + "\n")
        self.environ[CATALOGUE] = str(file)
        return file

    def lab(self, *rows, day=TODAY, **facts):
        directory = self.home.root / "lab"
        directory.mkdir(exist_ok=True)
        self.prices(*rows, provider="lab", day=day).replace(directory / "prices.csv")
        usual = {
            "region": "r1",
            "endpoint_url": "http://127.0.0.1:1",
            "access_key_id": "a",
            "secret_access_key": "b",
            "image_id": "ami-1",
            "user": "admin",
            "zones": ["r1a", "r1b"],
            "scale": {"cpu": 0.5, "memory": 0.25, "network": 0.1},
        }
        (directory / "lab.json").write_text(json.dumps(usual | facts))

    def plan(self, recipe, **how):
        return plan_run(
            SimpleNamespace(
                home=self.home,
                team=None,
                database=self,
                place=OpenHome(self.home).place,
                with_login=OpenHome(self.home).with_login,
            ),
            recipe,
            self.environ,
            self.make_quoter,
            **how,
        )

    def make_quoter(self, candidate_offers):
        self.candidate_offers = candidate_offers
        return self

    def settle(self, recipe, _environ, *, measures):
        self.asked.append("settle")
        self.may_measure = measures
        return with_workers(with_fewest(recipe), getattr(self, "counts", {}))

    def memory(self, _recipe, _environ):
        return self.measured

    def living_clusters(self, _provider, _home):
        return []

    def estimate(self, _recipe, _environ, _options):
        self.asked.append("estimate")
        if isinstance(self.quote, Exception):
            raise self.quote
        is_known = self.quote is not None and not self.quote.is_unknown
        return self.quote, "" if is_known else "nothing was measured"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def quoted(instance="large", count=2, *, region="r1", name="main", **more):
    shape = ClusterShape(Rented(instance, count, False, "aws", region, 0.2), workers=count)
    faster = ClusterShape(Rented("huge", 4, False, "aws", region, 2.0), workers=4)
    one = ExperimentQuote(
        name,
        shape,
        Interval(50, 60, 75),
        Interval(0.5, 0.6, 0.75),
        bottleneck="compute",
        pareto=(Alternative(faster, 20.0, 5.0), Alternative(shape, 60.0, 0.6)),
        measurements=3,
    )
    return Quote({name: one}, one.time_s, one.cost_usd, **more)


# --- what there is -------------------------------------------------------------------------------------


def test_offers_of_a_provider_are_its_rows_of_the_catalogue(world):
    world.prices()
    found = candidate_offers_of(world.recipe(), OpenHome(world.home), world.environ, TODAY)
    assert [offer.instance_type for offer in found.catalogue] == ["small", "large", "small"]
    assert (found.costs, found.zones, found.shares, found.hosts) == (True, {}, None, None)
    with pytest.raises(UsageError, match="no offers of it"):
        candidate_offers_of(world.recipe(provider="gcp"), OpenHome(world.home), world.environ, TODAY)


def test_the_region_of_the_aws_settings_counts_unless_the_recipe_names_one(world):
    world.prices()

    def regions(recipe, **environ):
        found = candidate_offers_of(recipe, OpenHome(world.home), world.environ | environ, TODAY)
        return {offer.region for offer in found.catalogue}, len(found.notes)

    named = world.recipe({"main": {"hardware": {"region": "r1"}}})
    assert regions(world.recipe(), AWS_REGION="r2") == ({"r2"}, 0)
    assert regions(world.recipe(), AWS_DEFAULT_REGION="r2") == ({"r2"}, 0)
    assert regions(named, AWS_REGION="r2") == ({"r1", "r2"}, 0)
    assert regions(named, AWS_REGION="r9") == ({"r1", "r2"}, 0)
    with pytest.raises(UsageError, match="has no prices of r9"):
        regions(world.recipe(), AWS_REGION="r9")
    with pytest.raises(UsageError, match="no region is chosen"):
        candidate_offers_of(world.recipe(), OpenHome(world.home), {"HOME": str(world.home.root)}, TODAY)


def test_the_lab_has_its_own_prices_zones_and_shares(world):
    with pytest.raises(UsageError, match="no lab is up"):
        candidate_offers_of(world.recipe(provider="lab"), OpenHome(world.home), {}, TODAY)
    world.lab()
    found = candidate_offers_of(world.recipe(provider="lab"), OpenHome(world.home), {}, TODAY)
    assert {offer.provider for offer in found.catalogue} == {"lab"}
    assert found.zones == {"r1": ("r1a", "r1b")}
    assert not found.catalogue.by_hand  # nobody has named it
    small = found.shares.of(found.catalogue.offers[0])
    assert (small.vcpus, small.memory_bytes, small.instance_type) == (0.95, 2 * 2**30, "small")


def test_hosts_are_those_of_the_inventory(world, tmp_path):
    recipe = world.recipe(provider="hosts")
    with pytest.raises(UsageError, match="no inventory"):
        candidate_offers_of(recipe, OpenHome(world.home), {}, TODAY)
    listed = {"hosts": [{"address": "h1", "slots": 4}, {"address": "h2", "slots": 2, "gpus": 1}]}
    (world.home.root / "hosts.yaml").write_text(json.dumps(listed))
    found = candidate_offers_of(recipe, OpenHome(world.home), {}, TODAY)
    (stands_for_all,) = found.catalogue
    assert (stands_for_all.vcpus, stands_for_all.accelerators, found.costs) == (2.0, 0.0, False)
    assert [host.name for host in found.hosts] == ["h1", "h2"]
    elsewhere = tmp_path / "others.yaml"
    elsewhere.write_text(json.dumps({"hosts": ["h3"]}))
    named = candidate_offers_of(recipe, OpenHome(world.home), {"TRAINMASTER_HOSTS": str(elsewhere)}, TODAY)
    assert [host.name for host in named.hosts] == ["h3"]


# --- what is put before the user ---------------------------------------------------------------------------


def test_the_cheapest_is_taken_where_nothing_is_known(world):
    world.prices()
    found = world.plan(world.recipe({"main": {"distributed": {"workers": 3}}}))
    assert found.lines == [
        "main: 3 x small in r1 at $0.3584 per hour",
        f"prices as of {TODAY}; $0.019 of each machine's is for its disk and address",
        "if a model cannot be saved, machines wait for it for at most $8.60 (budget.saving)",
        "no estimate: nothing was measured",
    ]
    capped = world.plan(world.recipe({"main": {"distributed": {"workers": 3}}}, budget={"total": "$2"}))
    assert "machines wait for it for at most $2.00 (budget.saving)" in capped.lines[2]
    assert (found.usd_per_hour, found.most_usd_per_hour) == (
        pytest.approx(0.3 + 3 * EXTRAS),
        pytest.approx(0.6 + 3 * EXTRAS),
    )
    assert found.costs


def test_what_limits_several_experiments_says_which(world):
    world.prices()
    main = quoted(not_quoted={})
    for limit, told in (
        ("compute", ["limited by compute"]),
        ("latency", ["main: limited by compute", "main at lab: limited by latency"]),
    ):
        more = {"main at lab": replace(main.main, bottleneck=limit)}
        world.quote = replace(main, experiments={**main.experiments, **more})
        found = world.plan(world.recipe({"main": {"distributed": {"workers": 2}}}))
        assert [line for line in found.lines if "limited" in line] == told


def test_when_an_unknown_job_starts_is_told_and_chooses_and_promises_nothing(world):
    world.prices()
    any_kind = quoted("large", 1)
    one = replace(any_kind.main, measurements=0)
    starts = UnknownTime(Interval(36, 50, 90), "budget.total ends it at $2.00, after 20 h at most")
    world.quote = replace(any_kind, experiments={"main": one}, time_s=None, cost_usd=None, unknown=starts)
    found = world.plan(world.recipe({"main": {}}, budget={"total": "$2"}))
    assert found.lines[0].startswith("main: 1 x small in r1")
    assert found.lines[-1].startswith("no estimate: it starts in 36 s to 1 min 30 s; how long it runs is not")
    assert found.lines[-1].endswith("; budget.total ends it at $2.00, after 20 h at most")
    assert (found.quote, found.most_usd) == (None, 2.0)
    found.note_down(None, "run", 7.0)


def test_the_quote_decides_and_its_estimate_is_shown_and_kept(world):
    world.prices()
    world.quote = quoted(not_quoted={})
    found = world.plan(world.recipe({"main": {"distributed": {"workers": 2}}}))
    assert found.lines[0] == "main: 2 x large in r1 at $0.439 per hour"
    told = "estimate: 1 min (50 s to 1 min 15 s), $0.60 ($0.50 to $0.75), with the wait for the machines"
    assert told in found.lines
    assert "limited by compute" in found.lines
    kept = []
    found.note_down(SimpleNamespace(add_quote=kept.append), "run", 7.0)
    promise = QuoteRecord.of_row({"kind": kept[0].kind, "made_at": kept[0].made_at, "data": kept[0].data})
    assert (promise.kind, promise.made_at, promise.measurements) == ("estimate", 7.0, 3)
    assert (promise.time_s, promise.cost_usd) == (Interval(50, 60, 75), Interval(0.5, 0.6, 0.75))
    assert promise.other == "4 x huge (20 s, $5.00)"


def test_an_estimate_of_a_part_is_shown_but_not_judged(world):
    world.prices()
    world.quote = quoted(not_quoted={"later": "not measured yet"})
    recipe = world.recipe({"main": {}, "later": {"after": ["main"]}})
    found = world.plan(recipe)
    assert "later is not in the estimate: not measured yet" in found.lines
    assert any(line.startswith("estimate without later: 1 min (50 s to") for line in found.lines)
    kept = []
    found.note_down(SimpleNamespace(add_quote=kept.append), "run", 7.0)
    assert kept == []


@pytest.mark.parametrize(("can_agree", "may_measure"), [(True, True), (False, False)])
def test_open_workers_are_measured_for_those_only_who_can_agree_to_costs(world, can_agree, may_measure):
    world.prices()
    recipe = world.recipe({"main": {"distributed": {"workers": "1..4"}, "batch": {"global": 64}, "steps": 9}})
    world.counts = {"main": 4}
    found = world.plan(recipe, can_agree=can_agree)
    assert world.may_measure == may_measure
    assert found.plans[0].nodes == 4
    assert found.recipe.experiments["main"].distributed.workers == 4


def test_old_prices_are_refused_by_their_date_unless_there_are_others(world):
    old = TODAY - timedelta(days=200)
    world.lab(*ROWS[:2], day=old)
    recipe = world.recipe(provider="lab")
    with pytest.raises(StalePrices) as error:
        world.plan(recipe)
    assert error.value.as_of == old
    assert str(error.value).startswith("provider: lab: ")
    assert str(old) in str(error.value)
    assert "--allow-stale" in str(error.value)
    assert world.asked == []  # nothing was measured for nothing
    assert world.plan(recipe, allow_stale=True).plans[0].roles[0].rentals[0].instance_type == "small"
    world.lab(ROWS[0].replace("{day}", str(old)), ROWS[1])
    rentals = world.plan(recipe).plans[0].roles[0].rentals
    assert {rental.instance_type for rental in rentals} == {"large"}
    world.lab(*ROWS[:2], day=TODAY - timedelta(days=179))  # it may be midnight
    assert world.plan(recipe)


def test_a_price_list_that_the_user_names_may_be_old(world):
    world.prices(day=TODAY - timedelta(days=2000))
    assert world.plan(world.recipe()).costs


def test_what_is_shipped_is_too_old_to_rent_by(world):
    world.environ["AWS_REGION"] = "us-east-1"
    with pytest.raises(StalePrices, match="builtin"):
        world.plan(world.recipe())


def test_what_does_not_fit_is_said_before_prices_are(world):
    world.environ["AWS_REGION"] = "us-east-1"
    with pytest.raises(UsageError, match="gpu: nosuch"):
        world.plan(world.recipe({"main": {"hardware": {"gpu": "nosuch"}}}))


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"per_hour": "$0.19"}, "Raise budget.per_hour to $0.2"),
        ({"total": "$0.003"}, "used up before anything has run"),
        ({"total": "$0.018"}, "Raise budget.total to $0.02"),
    ],
)
@pytest.mark.parametrize(
    "experiment", [{"distributed": {"workers": 2}}, {"serve": {"replicas": 2}}], ids=["workers", "replicas"]
)
def test_budgets_that_allow_nothing_are_refused(world, experiment, budget, said):
    world.prices()
    with pytest.raises(UsageError) as error:
        world.plan(world.recipe({"main": experiment}, budget=budget))
    assert said in str(error.value)
    assert world.asked == []


@pytest.mark.parametrize("total", ["$0.025", "$0.05"])
@pytest.mark.parametrize("after", [(), ("main",)], ids=["side by side", "one after the other"])
def test_a_cap_pays_for_the_start_of_all_that_run_at_once(world, total, after):
    """Else the run is ended as soon as the machines of the second one are asked for."""
    world.prices()
    kinds = {"main": ("small", []), "other": ("large", list(after))}
    made = {name: {"hardware": {"instance": kind}, "after": on} for name, (kind, on) in kinds.items()}
    recipe = world.recipe(made, budget={"total": total})
    if after or total == "$0.05":
        assert len(world.plan(recipe).plans) == 2
        return
    with pytest.raises(UsageError, match="to start the machines and to give them back in order") as refused:
        world.plan(recipe)
    assert "Raise budget.total to $0.034" in refused.value.hint


def test_what_runs_at_once_is_set_aside_with_what_each_cluster_costs_once(world):
    def cluster(name, *experiments, usd_per_hour):
        return ClusterPlan(
            name, experiments, "aws", (RolePlan("worker", 1, (Rental("m", usd_per_hour=usd_per_hour),)),)
        )

    recipe = world.recipe({"a": {}, "b": {}, "c": {"after": ["a"]}})
    one, two = cluster("a", "a", "b", usd_per_hour=3.6), cluster("c", "c", usd_per_hour=36.0)
    alone = {plan.name: least_usd(recipe, (plan,)) for plan in (one, two)}
    assert alone["c"] == pytest.approx(10 * alone["a"])
    assert least_usd(recipe, (one, two)) == pytest.approx(alone["a"] + alone["c"]), "b and c run at once"
    assert least_usd(recipe, (one, two), left={"a"}) == alone["a"]
    chain = cluster("a", "a", usd_per_hour=3.6)
    assert least_usd(recipe, (chain, two)) == pytest.approx(alone["c"]), "c waits for a"
    cheaper = cluster("c-hosts", "c", usd_per_hour=0.0)
    assert least_usd(recipe, (one, two, cheaper)) == pytest.approx(alone["a"]), "in its cheapest place"


def test_a_cap_that_pays_for_one_place_of_a_sweep_is_enough(world):
    recipe = world.recipe(budget={"total": "$0.01"})

    def plan(provider, rental):
        return ClusterPlan(f"main-{provider}", ("main",), provider, (RolePlan("worker", 1, (rental,)),))

    dear = plan("aws", Rental("small", usd_per_hour=3.6))
    check_total(recipe, (plan("hosts", Rental(is_rented=False)), dear))
    with pytest.raises(UsageError, match="costs up to"):
        check_total(recipe, (dear,))


def test_no_feasible_quote_ends_it_where_it_costs_and_is_a_note_where_it_does_not(world):
    world.prices()
    world.quote = no_feasible(QuoteLimits(deadline_s=5), None, 60.0, (60.0, 0.1))
    with pytest.raises(UsageError, match="no cluster keeps"):
        world.plan(world.recipe())
    (world.home.root / "hosts.yaml").write_text(json.dumps({"hosts": ["h1"]}))
    found = world.plan(world.recipe(provider="hosts"))
    assert (found.costs, found.quote) == (False, None)
    assert found.lines[0] == "main: 1 host"
    assert "no cluster keeps" in found.lines[1]


def test_machines_that_cannot_hold_what_was_measured_are_not_rented(world):
    world.prices()
    recipe = world.recipe()
    assert world.plan(recipe).plans[0].roles[0].rentals[0].instance_type == "small"
    world.measured = {"main": Memory(7.95 * 2**30)}  # fits into 8 GiB, but nothing else would
    offer = world.plan(recipe)
    assert {rental.instance_type for rental in offer.plans[0].roles[0].rentals} == {"large"}
    (note,) = (note for note in offer.notes if "left out" in note)
    assert "2 of 3 offers" in note
    assert "8,536 MB" in note
    world.measured = {"main": Memory(20 * 2**30)}
    with pytest.raises(UsageError, match="no machine that is allowed suffices"):
        world.plan(recipe)


def test_a_lab_has_less_memory_than_is_published(world):
    world.lab()
    world.measured = {"main": Memory(2.5 * 2**30)}  # a quarter of 16 GiB holds it
    offer = world.plan(world.recipe(provider="lab"))
    assert {rental.instance_type for rental in offer.plans[0].roles[0].rentals} == {"large"}
