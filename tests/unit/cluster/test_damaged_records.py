"""A cluster's row that is damaged: a record that can be reckoned with, or an error that says what to do."""

import json
import math
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from hostile_bytes import LEAVES, changed_json
from trainmaster.cluster.record import (
    CapacityFailure,
    ClusterRecord,
    ClusterState,
    DamagedClusterError,
    Machine,
    elsewhere,
    fits,
    resumed,
)
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan

NOW = 1_800_000_000.0
RENTAL = Rental("m4.large", "us", "us-a", True, 0.36, minimum_s=60.0, as_of="2026-01-01")
PLAN = ClusterPlan("train", ("train",), "aws", (RolePlan("worker", 2, (RENTAL,), {"a": "b"}),), ("a note",))
RECORD = ClusterRecord(
    "run.train", "aws", "h", PLAN, ClusterState.ACTIVE,
    (Machine("worker-0", "worker", "t", RENTAL, "i", "us-a", NOW - 60),
     Machine("worker-1", "worker", "u", RENTAL)),
    (CapacityFailure("us", "us-b", True, NOW),), 1, 2, leased_until=NOW + 900, asked_at=NOW - 90,
)  # fmt: skip
ROW = asdict(RECORD.as_row())


def record_or_refused(row):
    try:
        record = ClusterRecord.of_row(row)
    except DamagedClusterError as error:
        said = str(error)
        return "the row of cluster" in said and "trainmaster clusters end" in said
    usd = [record.spent_usd(NOW), record.most_usd(NOW, NOW + 900), record.usd_per_hour(), PLAN.usd_per_hour]
    usd += [record.plan.usd_per_hour, record.idle_usd(NOW, NOW - 30)]
    assert all(math.isfinite(each) for each in usd)
    assert len(record.seats) == record.plan.nodes
    assert {machine.seat for machine in record.live} <= {seat for seat, _ in record.seats}
    assert "/" not in record.id
    assert not record.id.startswith(".")
    fits(record, PLAN)
    resumed([record])
    assert ClusterRecord.of_row(asdict(record.as_row())) == record
    return record


@given(changed_json(json.loads(ROW["data"])))
def test_any_data(data):
    assert record_or_refused({**ROW, "data": data.decode(errors="surrogateescape")})


ODD = LEAVES | st.sampled_from(["a/b", "ACTIVE", "x"])


@given(st.dictionaries(st.sampled_from(sorted(ROW)), ODD, max_size=3))
def test_any_columns(changes):
    assert record_or_refused({**ROW, **changes})


def test_a_good_one_is_what_it_was():
    assert record_or_refused(ROW) == RECORD


def test_a_key_that_0_2_0_does_not_know_is_written_only_where_it_says_something():
    assert "left_provider" not in ROW["data"]
    left = elsewhere(RECORD, PLAN)
    assert "left_provider" in left.as_row().data
    assert ClusterRecord.of_row(asdict(left.as_row())) == left
