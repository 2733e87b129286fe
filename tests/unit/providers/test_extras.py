"""Disks and addresses are part of what a machine costs, wherever it is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.quote.supply import Supply, offers_for
from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan_clusters import plan_clusters
from trainmaster.providers import Catalogue, Offer
from trainmaster.providers.aws.settings import USUAL_EXTRAS
from trainmaster.providers.local_machine import local_offer
from trainmaster.providers.offer import Extras, unknown_extras
from trainmaster.spec import read_recipe

GIB = 2**30
HOST = local_offer(date(2026, 11, 1))


def offer(
    price: float = 0.1, *, spot: bool = False, provider: str = "aws", region: str = "eu-west-1"
) -> Offer:
    return replace(
        HOST,
        provider=provider,
        region=region,
        instance_type="m4.large",
        vcpus=2.0,
        memory_bytes=8 * GIB,
        accelerator="",
        accelerators=0.0,
        accelerator_memory_bytes=None,
        price_usd_per_hour=price,
        spot=spot,
        billing_minimum_s=60.0,
        arch="",
    )


def test_a_disk_and_an_address_are_billed_by_the_hour() -> None:
    billed = Extras(100 * GIB, public_address=True).added_to(offer())
    assert billed.extras_usd_per_hour == pytest.approx(100 * 0.088 / (28 * 24) + 0.005)
    assert billed.price_usd_per_hour == pytest.approx(0.1 + billed.extras_usd_per_hour)
    inside = Extras(100 * GIB, public_address=False).added_to(offer())
    assert billed.price_usd_per_hour - inside.price_usd_per_hour == pytest.approx(0.005)


def test_the_recipe_s_disk_counts_where_it_names_one() -> None:
    assert USUAL_EXTRAS.added_to(offer(), 200 * GIB) == Extras(200 * GIB, public_address=True).added_to(
        offer()
    )


def test_an_unknown_region_is_billed_as_the_dearest() -> None:
    prices = [
        USUAL_EXTRAS.added_to(offer(region=r)).price_usd_per_hour
        for r in ("mars-1", "sa-east-1", "us-east-1")
    ]
    assert prices[0] == prices[1] > prices[2]


def test_where_the_rates_are_not_known_the_user_is_told() -> None:
    foreign = offer(provider="gcp")
    assert USUAL_EXTRAS.added_to(foreign) == foreign
    assert "gcp" in unknown_extras("gcp")
    assert not unknown_extras("lab")


@pytest.fixture
def recipe(tmp_path):
    def make(hardware: str):
        path = tmp_path / "recipe.yaml"
        path.write_text(
            f"name: job\nprovider: aws\nexperiments: {{main: {{command: 'true', hardware: {hardware}}}}}\n"
        )
        return read_recipe(path)

    return make


@pytest.mark.parametrize("hardware", ["{}", "{disk: 500GB}", "{disk: 500GB, spot: true}"])
def test_quote_and_rental_count_the_same(recipe, hardware: str) -> None:
    there = (offer(), offer(0.03, spot=True))
    made = recipe(hardware)
    (plan,) = plan_clusters(made, AvailableOffers("aws", there, extras=USUAL_EXTRAS))
    rental = plan.roles[0].rentals[0]
    workload = Workload.of(made.experiments["main"], 0)
    (quoted, *_) = offers_for(workload, Supply(Catalogue("list", there), extras=USUAL_EXTRAS))
    assert rental.usd_per_hour == pytest.approx(quoted.price_usd_per_hour)
    assert rental.extras_usd_per_hour > 0


@pytest.mark.parametrize(
    ("on_demand", "highest"),
    [((offer(0.1),), 0.036), ((offer(0.032),), 0.032), ((), 0.036), ((offer(0.02),), 0.03)],
)
def test_a_spot_machine_costs_at_most_a_fifth_more_and_never_more_than_one_on_demand(
    recipe, on_demand: tuple[Offer, ...], highest: float
) -> None:
    there = (offer(0.03, spot=True), *on_demand)
    (plan,) = plan_clusters(recipe("{spot: true}"), AvailableOffers("aws", there, extras=USUAL_EXTRAS))
    rental = plan.roles[0].rentals[0]
    assert rental.max_price_usd_per_hour == pytest.approx(highest)
    assert rental.at_most.usd_per_hour == pytest.approx(highest + rental.extras_usd_per_hour)


def test_machines_on_demand_have_one_price(recipe) -> None:
    (plan,) = plan_clusters(recipe("{spot: false}"), AvailableOffers("aws", (offer(),), extras=USUAL_EXTRAS))
    rental = plan.roles[0].rentals[0]
    assert rental.max_price_usd_per_hour == 0.0
    assert rental.at_most.usd_per_hour == rental.usd_per_hour
