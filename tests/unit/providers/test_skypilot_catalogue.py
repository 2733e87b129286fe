"""SkyPilot's layout: gaps are refused rows, not errors."""

import gc
from datetime import date

import pytest
from counted_calls import counted_calls
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.providers import load_catalogue
from trainmaster.spec.errors import UsageError

TODAY = date(2026, 6, 1)
HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,"
    "Price,SpotPrice,Region,AvailabilityZone,Arch"
)
INFO = (
    "\"{'Gpus': [{'Name': 'V100', 'Manufacturer': 'NVIDIA', 'Count': 4.0, "
    "'MemoryInfo': {'SizeInMiB': 16384}}], 'TotalGpuMemoryInMiB': 65536}\""
)
P3 = f"p3.8xlarge,V100,4.0,32.0,244.0,{INFO},12.24,3.672,us-east-1,us-east-1b,x86_64"
M5 = "m5.large,,,2.0,8.0,,0.096,,us-east-1,us-east-1b,x86_64"


@pytest.fixture
def read(tmp_path):
    def read(*lines, folder="aws", header=HEADER):
        path = tmp_path / folder / "vms.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([header, *lines]) + "\n")
        return load_catalogue(path, today=TODAY)

    return read


def test_on_demand_and_spot_are_two_offers(read):
    catalogue = read(P3, M5)
    dear, cheap, small = catalogue
    assert (dear.provider, dear.region, dear.zone) == ("aws", "us-east-1", "us-east-1b")
    assert (dear.instance_type, dear.vcpus, dear.memory_bytes) == ("p3.8xlarge", 32, 244 << 30)
    assert (dear.accelerator, dear.accelerators, dear.accelerator_memory_bytes) == ("V100", 4, 16 << 30)
    assert [(o.price_usd_per_hour, o.spot) for o in (dear, cheap)] == [(12.24, False), (3.672, True)]
    assert (dear.nic_gbps, dear.arch, dear.billing_minimum_s) == (None, "x86_64", 60)
    assert dear.source.endswith("aws/vms.csv:2")
    assert (small.accelerator, small.spot) == ("", False)
    assert not catalogue.refused
    assert "has no dates" in catalogue.warnings[0]


def test_the_cloud_is_the_folder_or_else_what_its_types_look_like(read):
    assert read(M5, folder="lambda").offers[0].provider == "lambda"
    kinds = ("m5.large", "Standard_D2s_v3", "n1-standard-8", "gpu_1x_a10")
    found = [read(M5.replace("m5.large", kind), folder="downloads").offers[0].provider for kind in kinds]
    assert found == ["aws", "azure", "gcp", "unknown"]


def test_columns_that_somebody_added(read):
    header = f"{HEADER},NetworkGbps,NetworkBurstGbps,BillingQuantumS,AsOf,Source,Provider"
    catalogue = read(f"{M5},0.75,10,3600,2026-05-01,a page,ovh", header=header)
    (offer,) = catalogue
    assert (offer.nic_gbps, offer.nic_burst_gbps, offer.billing_quantum_s) == (0.75, 10, 3600)
    assert (offer.as_of, offer.source, offer.provider) == (date(2026, 5, 1), "a page", "ovh")
    assert not catalogue.warnings


def test_gaps_are_refused_and_named(read):
    catalogue = read(
        ",V100,1.0,,,,2.48,0.74,us-central1,us-central1-a,",  # Google's price of a GPU alone
        M5.replace("0.096", ""),
        M5.replace("0.096", "0.0").replace("m5.large", "m5.xlarge"),
        M5.replace("2.0", "").replace("m5.large", "m5.2xlarge"),
        P3.replace("3.672", "13"),
        "m5.large,2.0",
        M5,
    )
    reasons = {refusal.line: str(refusal) for refusal in catalogue.refused}
    assert [o.instance_type for o in catalogue] == ["p3.8xlarge", "m5.large"]
    assert "the price of a part" in reasons[2]
    assert "Price and SpotPrice: nothing" in reasons[3]
    assert "us-east-1 m5.xlarge: the price is 0 USD" in reasons[4]
    assert "vCPUs: nothing; a number is needed" in reasons[5]
    assert "spot for 13 USD is dearer than on demand for 12.24" in reasons[6]
    assert "it has 2 cells" in reasons[7]


def test_a_spot_price_alone(read):
    (offer,) = read(P3.replace("12.24", ""))
    assert offer.spot


def test_without_what_an_offer_needs(read):
    with pytest.raises(UsageError, match="without vCPUs, MemoryGiB"):
        read("a,1", header="InstanceType,Price")


cells = st.sampled_from(["", "0", "-1", "nan", "inf", "x", "1", "2.5", "V100", "{'SizeInMiB': 0}", "1e400"])


@given(st.lists(st.lists(cells, min_size=11, max_size=11), max_size=8))
def test_every_row_becomes_an_offer_or_a_refusal(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("sky") / "vms.csv"
    path.write_text("\n".join([HEADER, *(",".join(row) for row in rows)]) + "\n")
    catalogue = load_catalogue(path, today=TODAY)
    lines = {refusal.line for refusal in catalogue.refused}
    lines |= {int(offer.source.rpartition(":")[2]) for offer in catalogue}
    seen = [tuple(row) for row in rows if any(row)]
    assert len(lines) <= len(seen)
    if len(set(seen)) == len(seen) == len(rows) and all(row[0] != "" for row in rows):
        keys = {(row[0], row[1], row[2], row[8], row[9]) for row in seen}
        if len(keys) == len(seen):  # else one may be left out because it repeats another
            assert lines == set(range(2, 2 + len(rows)))
    for offer in catalogue:
        assert 0 < offer.price_usd_per_hour < float("inf")
        assert bool(offer.accelerator) == bool(offer.accelerators)


def test_rows_are_read_one_by_one_with_little_work_for_each(tmp_path):
    """70 calls for each today: 50,000 rows take 0.5 s of a quiet machine."""
    calls = {}
    for count in (1_000, 4_000):
        path = tmp_path / f"vms-{count}.csv"
        rows = (
            f"t{n % 700}.xlarge,V100,1.0,4.0,16.0,{INFO},{0.2 + n * 1e-5:.5f},{0.1 + n * 1e-6:.6f},"
            f"r-{n // 700},r-{n // 700}a,x86_64"
            for n in range(count)
        )
        path.write_text("\n".join([HEADER, *rows]) + "\n")
        calls[count], catalogue = counted_calls(lambda path=path: load_catalogue(path))
        assert len(catalogue) == 2 * count
    assert calls[4_000] < 100 * 4_000
    assert calls[4_000] < 4.5 * calls[1_000], "no row is compared with every other"


def test_the_garbage_collector_does_not_go_through_offers_that_all_stay(tmp_path):
    path = tmp_path / "vms.csv"
    path.write_text("\n".join([HEADER, *[M5.replace("m5", f"m{n}") for n in range(5_000)]]) + "\n")
    collections = []
    gc.callbacks.append(lambda phase, _: collections.append(phase))
    try:
        offers = load_catalogue(path)
        during = len(collections)
        gc.collect()
    finally:
        gc.callbacks.pop()
    assert len(offers) == 5_000
    assert len(collections) > during, "it is heard"
    assert during <= 2, "one at most, before or after: it begins and ends"
