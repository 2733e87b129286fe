"""Any bytes are a catalogue, or are refused; rows that are none are told and left out."""

from __future__ import annotations

import contextlib
import math
from datetime import date
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainmaster.providers import load_catalogue
from trainmaster.providers.own_csv import COLUMNS
from trainmaster.spec.errors import UsageError

SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,"
    "AvailabilityZone"
)
OWN = "provider,region,instance_type,vcpus,memory_gib,gpu,gpus,price_usd_per_hour,as_of"
ROWS = {OWN: "aws,eu,m4,2,8,T4,1,0.1,2026-05-01", SKYPILOT: "m4,T4,1.0,2.0,8.0,,0.1,0.05,eu,eu-a"}
cells = st.sampled_from(
    ["", "1", "-1", "1e999", "nan", "inf", "1_0", "9" * 400, "2026-13-45", "true", "x", '"', "1e308"]
)
cells |= st.text(max_size=6)


def read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(data)
    with contextlib.suppress(UsageError):
        for offer in load_catalogue(path, today=date(2026, 6, 1)).offers:
            numbers = (offer.vcpus, offer.memory_bytes, offer.price_usd_per_hour)
            assert all(math.isfinite(number) and number >= 0 for number in numbers)


@given(
    st.sampled_from([OWN, SKYPILOT, ",".join(COLUMNS), ""]),
    st.lists(st.lists(cells, max_size=12), max_size=4),
)
def test_any_cells(tmp_path_factory: pytest.TempPathFactory, header: str, rows: list[list[str]]) -> None:
    text = "\n".join([header, *(",".join(row) for row in rows)])
    read_or_refused(tmp_path_factory, text.encode("utf-8", "surrogatepass"))


@given(st.sampled_from([OWN, SKYPILOT]), st.integers(0, 200), st.integers(0, 9), st.binary(max_size=9))
@example(OWN, 0, 0, b"x" * 200_000)
def test_a_good_one_with_a_piece_changed(
    tmp_path_factory: pytest.TempPathFactory, header: str, where: int, count: int, piece: bytes
) -> None:
    data = f"{header}\n{ROWS[header]}\n".encode() * 2
    read_or_refused(tmp_path_factory, data[:where] + piece + data[where + count :])
