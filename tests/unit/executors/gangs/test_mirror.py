import base64
import json
from pathlib import Path

import pytest

from trainmaster.executors.gangs.copies import PIECE_BYTES, Mirror, identity, read_at, read_pieces


def carry(source, mirror, have, attempt="a", node="n0", members=("worker-0",), limit=1 << 20):
    """One round: what the node has, written by the driver."""
    pieces, more = read_pieces(str(source), members, have, limit)
    for name, offset, count, text in pieces:
        data = base64.b64decode(text)
        assert len(data) == count
        mirror.write(attempt, node, name, offset, data)
        have[name] = offset + count
    return more


@pytest.fixture
def places(tmp_path):
    source, copy = tmp_path / "node", tmp_path / "driver"
    source.mkdir()
    return source, copy


def test_copies_what_belongs_to_members(places, tmp_path):
    source, copy = places
    (source / "worker-0.log").write_bytes(b"hello\n")
    (source / "worker-0.metrics.jsonl").write_bytes(b"{}\n")
    (source / "worker-0.sh").write_bytes(b"export SECRET=1")
    (source / "worker-00.log").write_bytes(b"another's")
    (source / "model.pt").write_bytes(b"large")
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (source / "worker-0.link").symlink_to(tmp_path / "elsewhere")
    mirror = Mirror(Path)
    assert mirror.follow("a", str(copy), ["worker-0"])[1] == {}
    carry(source, mirror, {})
    assert sorted(path.name for path in copy.iterdir()) == ["worker-0.log", "worker-0.metrics.jsonl"]


def test_goes_on_where_it_was_cut_short(places):
    source, copy = places
    log = source / "worker-0.log"
    log.write_bytes(b"x" * (3 * PIECE_BYTES + 5))
    first = Mirror(Path)
    _, have = first.follow("a", str(copy), ["worker-0"])
    assert carry(source, first, have)
    second = Mirror(Path)  # another driver process
    _, have = second.follow("a", str(copy), ["worker-0"])
    assert have == {"worker-0.log": PIECE_BYTES}
    second.write("a", "n0", "worker-0.log", 0, b"x" * 10)  # what was on its way comes twice
    while carry(source, second, have):
        pass
    assert (copy / "worker-0.log").read_bytes() == log.read_bytes()


def test_bounded(places):
    source, _ = places
    for index in range(20):
        (source / f"worker-{index}.log").write_bytes(b"x" * PIECE_BYTES)
    pieces, more = read_pieces(str(source), [f"worker-{index}" for index in range(20)], {}, 1 << 20)
    assert sum(count for _, _, count, _ in pieces) == 1 << 20
    assert more


def test_old_segments_are_dropped(places):
    _, copy = places
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    for index in range(8):
        name = "worker-0.log" + (f".{index}" if index else "")
        mirror.write("a", "n0", name, 0, b"x")
    names = sorted(path.name for path in copy.iterdir())
    assert names == ["worker-0.log", "worker-0.log.5", "worker-0.log.6", "worker-0.log.7"]


def row(member, time, **more):
    return json.dumps({"member": member, "time": time, **more}).encode() + b"\n"


def test_samples_of_all_nodes_in_one_file(places):
    _, copy = places
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0", "worker-1"])
    zero = row("worker-0", 1.0) + row("worker-0", 2.0)
    mirror.write("a", "n0", "samples.jsonl", 0, zero[:30])
    mirror.write("a", "n1", "samples.jsonl", 0, row("worker-1", 1.5))
    mirror.write("a", "n0", "samples.jsonl", 30, zero[30:])
    again = Mirror(Path)
    again.follow("a", str(copy), ["worker-0", "worker-1"])
    again.write("a", "n0", "samples.jsonl", 0, zero + row("worker-0", 3.0) + row("worker-0", 3.0, last=True))
    rows = [json.loads(line) for line in (copy / "samples.jsonl").read_text().splitlines()]
    assert sorted((each["member"], each["time"]) for each in rows) == [
        ("worker-0", 1.0),
        ("worker-0", 2.0),
        ("worker-0", 3.0),
        ("worker-0", 3.0),
        ("worker-1", 1.5),
    ]


def test_a_line_without_an_end_and_names_without_number_are_not_kept(places):
    _, copy = places
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    for number in range(5):
        mirror.write("a", "n0", "samples.jsonl", 100_000 * number, b"x" * 100_000)
        assert sum(map(len, mirror._rests.values())) <= 64 << 10
    made_up = b"".join(row(f"worker-{number}", 1.0) for number in range(100))
    mirror.write("a", "n0", "samples.jsonl", 500_000, b"\n" + made_up + row("worker-0", 2.0))
    assert (copy / "samples.jsonl").read_bytes().splitlines() == [
        *made_up.splitlines()[:2], row("worker-0", 2.0).rstrip()
    ]  # fmt: skip


def test_nothing_leaves_the_directory(places):
    _, copy = places
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    for name in ("../worker-0.log", "/etc/x", "worker-0.x/../../y", "other.log"):
        mirror.write("a", "n0", name, 0, b"x")
    mirror.write("unknown", "n0", "worker-0.log", 0, b"x")
    assert not copy.exists() or not list(copy.iterdir())
    assert not (copy.parent / "worker-0.log").exists()


def test_reading_what_is_no_file(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert read_at(str(tmp_path / "link"), 0, 10) == b""
    assert read_at(str(tmp_path), 0, 10) == b""
    assert read_at(str(tmp_path / "gone"), 0, 10) == b""
    assert read_pieces(str(tmp_path / "gone"), ["worker-0"], {}, 10) == ([], False)


def test_identity(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    assert identity(str(tmp_path / "a")) == identity(str(tmp_path / "b"))
    assert identity(str(tmp_path)) != identity(str(tmp_path / "a"))
    assert identity(str(tmp_path / "gone")) is None


def test_a_node_cannot_fill_the_disk(places, monkeypatch):
    _, copy = places
    monkeypatch.setattr("trainmaster.executors.gangs.copies.ATTEMPT_BYTES", 1000)
    monkeypatch.setattr("trainmaster.executors.gangs.copies.MEMBER_BYTES", 0)
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    mirror.write("a", "n0", "worker-0.log", 0, b"x" * 600)
    for offset in (601, 1 << 60, -1):
        with pytest.raises(OSError, match="a piece at"):
            mirror.write("a", "n0", "worker-0.log", offset, b"x")
    for number in range(100):
        mirror.write("a", "n0", f"worker-0.log.{10 + 3 * number}", 0, b"x" * 200)
        mirror.write("a", "n0", f"worker-0.{number}", 0, b"x" * 200)
    assert sum(path.stat().st_size for path in copy.iterdir()) < 1100
    assert "the rest is on the node" in (copy / "worker-0.log").read_text()


def test_the_driver_keeps_room_for_itself(places, monkeypatch):
    _, copy = places
    monkeypatch.setattr("trainmaster.executors.gangs.copies.RESERVE_BYTES", 1 << 62)
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    with pytest.raises(OSError, match="no room"):
        mirror.write("a", "n0", "worker-0.log", 0, b"x")
    assert not list(copy.iterdir())


@pytest.mark.parametrize(
    "name", ["worker-0.\0", "worker-0./x", "worker-0." + "x" * 300, "worker-0.\x1b[2J", "worker-0.sh"]
)
def test_names_that_are_none_of_ours(places, name):
    _, copy = places
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    mirror.write("a", "n0", name, 0, b"x")
    assert not copy.exists()


def test_a_segment_that_was_dropped_makes_room(places, monkeypatch):
    _, copy = places
    monkeypatch.setattr("trainmaster.executors.gangs.copies.ATTEMPT_BYTES", 1000)
    monkeypatch.setattr("trainmaster.executors.gangs.copies.MEMBER_BYTES", 0)
    mirror = Mirror(Path)
    mirror.follow("a", str(copy), ["worker-0"])
    for number in range(1, 20):
        mirror.write("a", "n0", f"worker-0.log.{number}", 0, b"x" * 200)
    assert (copy / "worker-0.log.19").read_bytes() == b"x" * 200
