"""What an attempt has used, from the lines that its node wrote."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.measure import measuring
from trainmaster.executors.telemetry import usage
from trainmaster.executors.telemetry.usage import (
    SilenceMeter,
    Usage,
    logged_bytes,
    member_samples,
    node_members,
    node_samples,
    read_usage,
    total_usage,
)


def line(member, seconds, cpu_seconds, rss_bytes=100, sent=None, received=None, **more):
    return json.dumps({
        "time": 1000 + seconds, "member": member, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "rss_bytes": rss_bytes, "peak_rss_bytes": rss_bytes, "processes": 1,
        "bytes_sent": sent, "bytes_received": received, **more,
    })  # fmt: skip


@pytest.fixture
def directory(tmp_path):
    lines = [
        line("ps-0", 1, 0.5, 100, 0, 0),
        line("worker-0", 1, 1.0, 500, 0, 0),
        line("ps-0", 2, 1.5, 300, 4000, 1000),
        line("worker-0", 2, 3.0, 700, 1000, 4000),
        line("ps-0", 4, 3.5, 300, 12000, 3000),
        line("worker-0", 4, 7.0, 700, 3000, 12000),
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_each_member_over_its_life(directory):
    assert read_usage(directory) == {
        "ps-0": Usage(4, 3.5, 3.5 / 4, 300, 12000, 3000),
        "worker-0": Usage(4, 7.0, 7.0 / 4, 700, 3000, 12000),
    }


def test_without_the_time_that_does_not_count(directory):
    found = read_usage(directory, since_s=2.5)["ps-0"]
    assert found == Usage(2, 2.0, 1.0, 300, 8000, 2000)
    assert read_usage(directory, since_s=1, until_s=2)["worker-0"] == Usage(1, 2.0, 2.0, 700, 1000, 4000)
    assert read_usage(directory, since_s=100)["ps-0"].seconds == 0, "nothing was seen then"
    assert read_usage(directory, until_s=0.5) == {}


def test_all_members_together(directory):
    total = total_usage(read_usage(directory).values())
    assert total == Usage(4, 10.5, 10.5 / 4, 1000, 15000, 15000)
    assert total.as_json() == {
        "seconds": 4, "cpu_seconds": 10.5, "cpu_share": 2.625, "peak_rss_bytes": 1000,
        "bytes_sent": 15000, "bytes_received": 15000,
    }  # fmt: skip
    assert total_usage([]) is None


def test_bytes_and_gpus_may_be_unknown(tmp_path):
    (tmp_path / "samples.jsonl").write_text(line("worker-0", 2, 1.0))
    found = read_usage(tmp_path)["worker-0"]
    assert (found.bytes_sent, found.gpu_utilisation, found.gpu_memory_bytes) == (None, None, None)
    assert "bytes_sent" not in found.as_json()
    assert total_usage([found, Usage(1, 1, 1, 1, 7, 7)]).bytes_sent == 7


def test_gpus(tmp_path):
    lines = [
        line("worker-0", seconds, seconds, gpu_utilisation=share, gpu_memory_bytes=memory)
        for seconds, share, memory in ((1, 0.0, None), (2, 0.9, 500), (3, 0.7, 400))
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join([*lines, line("worker-0", 3.5, 3.5)]))
    found = read_usage(tmp_path)["worker-0"]
    assert (round(found.gpu_utilisation, 3), found.gpu_memory_bytes) == (0.533, 500)
    assert round(read_usage(tmp_path, since_s=1)["worker-0"].gpu_utilisation, 3) == 0.8


def test_lines_that_are_torn_or_strange(directory):
    path = directory / "samples.jsonl"
    whole = read_usage(directory)
    path.write_text(
        '{"time":1,"mem\n[]\n"x"\n{"member":"old"}\n' + path.read_text() + '{"time": 5, "member": "ps'
    )
    assert read_usage(directory) == whole


def test_no_samples(tmp_path):
    assert read_usage(tmp_path) == {}


def test_the_end_of_a_long_file_is_enough(tmp_path):
    lines = [line("worker-0", second, second / 2, second % 7, second * 10, 0) for second in range(1, 20_001)]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines))
    found = read_usage(tmp_path, whole=False)["worker-0"]
    assert (found.seconds, found.cpu_seconds, found.bytes_sent) == (20_000, 10_000, 200_000)


huge = st.sampled_from([10**299, -(10**400), 1e299, 1e-300])
odd = st.none() | st.booleans() | st.integers() | st.floats() | huge | st.text(max_size=3) | st.just([1])
samples = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(0, 9) | odd
        for name in (
            "member", "time", "seconds", "cpu_seconds", "rss_bytes", "peak_rss_bytes", "bytes_sent",
            "bytes_received", "gpu_utilisation", "gpu_memory_bytes", "log_bytes", "gpus", "cpu_percent",
        )
    },
)  # fmt: skip
lines = (
    samples.map(json.dumps)
    | samples.map(lambda found: json.dumps({**json.loads(line("a", 1, 1)), **found}))
    | samples.map(lambda found: json.dumps({**found, "member": "@n", "time": 1.0}))
    | st.text(max_size=9)
    | st.just("[" * 5000)
)


@given(st.lists(lines, max_size=5))
def test_whatever_a_node_wrote_is_read(tmp_path_factory, found):
    place = tmp_path_factory.getbasetemp() / "samples"
    place.mkdir(exist_ok=True)
    (place / "samples.jsonl").write_text("\n".join(found) + "\n", encoding="utf-8", errors="surrogatepass")
    for each in read_usage(place).values():
        assert each.seconds >= 0
        json.dumps(each.as_json(), allow_nan=False)
    told = [*member_samples(place).values(), *node_samples(place).values()]
    json.dumps(told, allow_nan=False)
    assert SilenceMeter(place).look() >= 0
    assert logged_bytes(place, "a", 1e9) < 1 << 63
    assert set(node_members(place)) <= {"n"}


def test_a_node_that_says_what_is_no_number_stops_no_driver(tmp_path):
    said = [{"log_bytes": "many"}, {"log_bytes": 10**400}, {"log_bytes": [1]}]
    (tmp_path / "samples.jsonl").write_text(
        "".join(line("worker-0", second, second, **each) + "\n" for second, each in enumerate(said, 1))
        + json.dumps({"member": "@n", "time": 1.0, "gpus": 7})
        + "\n"
    )
    assert SilenceMeter(tmp_path).look() == 0
    assert node_samples(tmp_path) == {"n": [{"time": 1.0}]}


def test_of_a_file_that_has_no_end_so_much_is_read(tmp_path, monkeypatch):
    lines = [
        line(member, second, second / 2)
        for second in range(1, 2001)
        for member in ("ps-0", "worker-0", "worker-1")
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(usage, "MOST_BYTES", 100_000)
    monkeypatch.setattr(usage, "_PIECE_BYTES", 10_000)
    found = member_samples(tmp_path)
    assert {member: (rows[0]["seconds"], rows[-1]["seconds"]) for member, rows in found.items()} == {
        "ps-0": (1, 2000), "worker-0": (1, 2000), "worker-1": (1, 2000)
    }  # fmt: skip
    seconds = [row["seconds"] for row in found["worker-0"]]
    assert seconds == sorted(seconds)
    assert max(after - before for before, after in itertools.pairwise(seconds)) < 300, "from all of it"
    assert sum(len(json.dumps(row)) for rows in found.values() for row in rows) < 110_000
    (tmp_path / "samples.jsonl").write_bytes(b"x" * 300_000)
    assert member_samples(tmp_path) == {}


def test_how_long_a_log_was_at_some_time(tmp_path):
    rows = [
        {
            "time": 100.0 + i,
            "member": member,
            "seconds": i,
            "cpu_seconds": 0,
            "peak_rss_bytes": 0,
            "log_bytes": n,
        }
        for i, n in enumerate((0, 50, 80))
        for member in ("worker-0", "worker-1")
    ]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "samples.jsonl").write_text("\n".join([*lines, "{", '{"member": "worker-0", "time": 101}']))
    sizes = [logged_bytes(tmp_path, "worker-0", at) for at in (99.0, 100.0, 101.5, 500.0)]
    assert sizes == [0, 0, 50, 80]
    assert logged_bytes(tmp_path / "none", "worker-0", 500.0) == 0


def test_nodes_are_told_from_members(tmp_path):
    node = {"member": "@ip-10-0-0-1", "time": 10.0, "cpu_percent": None, "memory_available_bytes": 7}
    gpus = [{"utilisation": 0.5, "memory_used_bytes": 3}, {"utilisation": 0.25}, "none"]
    rows = [node, {**node, "time": 20.0, "gpus": gpus}, {**node, "time": "soon"}, {**node, "member": 7}]
    (tmp_path / "samples.jsonl").write_text(
        "\n".join(map(json.dumps, rows)) + "\n" + line("worker-0", 2, 1.0)
    )
    assert node_samples(tmp_path) == {
        "ip-10-0-0-1": [
            {"time": 10.0, "memory_available_bytes": 7},
            {"time": 20.0, "memory_available_bytes": 7, "gpus_busy": 0.75, "gpu_memory_bytes": 3},
        ]
    }
    assert list(read_usage(tmp_path)) == ["worker-0"]


def test_the_latency_of_a_gang_is_half_of_its_members_round_trips(tmp_path):
    lines = [
        line("worker-0", 1, 1.0, round_trip_ms=90.0),
        line("worker-0", 2, 1.0, round_trip_ms=40.4),
        line("worker-1", 2, 1.0, round_trip_ms=40.0),
        line("worker-2", 2, 1.0),
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    found = read_usage(tmp_path)
    assert [each.round_trip_ms for each in found.values()] == [40.4, 40.0, None]
    assert measuring._latency_ms(found.values()) == pytest.approx(20.1)
    assert measuring._latency_ms([found["worker-2"]]) is None, "nobody knows it"


@pytest.mark.parametrize(
    ("grows", "is_silent"),
    [
        ({}, True),
        ({"cpu_seconds": 0.05}, True),
        ({"cpu_seconds": 1.0}, False),
        ({"log_bytes": 1}, False),
        ({"bytes_sent": 900}, True),
        ({"bytes_sent": 900_000}, False),
    ],
)
def test_how_long_there_was_no_sign_of_work(tmp_path, grows, is_silent):
    meter = SilenceMeter(tmp_path)
    assert meter.look() == 0
    with (tmp_path / "samples.jsonl").open("a") as file:
        for number in range(25):
            for member in ("worker-0", "worker-1"):
                steps = number if member == "worker-1" else 0
                row = {
                    "time": 1e9 + 5 * number,
                    "member": member,
                    "seconds": 5.0 * number,
                    "peak_rss_bytes": 1,
                }
                for key in ("cpu_seconds", "log_bytes", "bytes_sent", "bytes_received"):
                    row[key] = 7 + steps * grows.get(key, 0)
                file.write(json.dumps(row) + "\n")
            file.flush()
            meter.look()
        file.write('{"half": ')
    assert meter.look() == (120 if is_silent else 0)
