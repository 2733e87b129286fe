"""Anwar's recommendations as published."""

import csv
import json
from pathlib import Path

import pytest

from trainmaster.advisor import papers
from trainmaster.advisor.papers.lookup import Measured, lookup
from trainmaster.spec.errors import NotFoundError

DATA = Path(__file__).parents[2] / "data"
ANWAR = json.loads((DATA / "seed_vectors.json").read_text())["anwar"]


@pytest.fixture(scope="module")
def table():
    with Path(papers.__file__).with_name("anwar.csv").open() as file:
        return [
            Measured(
                int(row["workers"]),
                float(row["batch_size"]),
                float(row["latency_ms"]),
                float(row["time_per_epoch_s"]) if row["time_per_epoch_s"] else None,
            )
            for row in csv.DictReader(file)
        ]


def test_table_4_is_in_the_data(table):
    rows = {(m.workers, m.batch, m.latency_ms): m.time_s for m in table}
    assert all(rows[n, b, lat] == t for n, b, lat, t in ANWAR["table4"])


@pytest.mark.parametrize("cell", ANWAR["cells"], ids=lambda c: f"{c['batch']}-{c['latency_ms']}ms")
def test_winner_of_every_cell_is_the_published_one(table, cell):
    found = lookup(table, cell["batch"], cell["latency_ms"])
    assert found.workers == cell["winner_lookup"]
    assert found.time_s == cell["times"][str(found.workers)]


@pytest.mark.parametrize(("batch", "latency", "workers"), ANWAR["api"])
def test_the_papers_examples_work_despite_the_blank_row(table, batch, latency, workers):
    assert lookup(table, batch, latency).workers == workers


def test_no_match_is_an_error_and_not_zero_workers(table):
    with pytest.raises(NotFoundError, match="batch 6400 at 20 ms"):
        lookup(table, 6000, 25)


def test_ties_go_to_the_smaller_cluster():
    assert lookup([Measured(4, 8, 0, 5.0), Measured(2, 8, 0, 5.0)], 8, 0).workers == 2


def test_a_price_moves_the_choice_to_fewer_workers(table):
    assert lookup(table, 64000, 0, cost_weight=200.0, usd_per_hour=1.0).workers == 3
