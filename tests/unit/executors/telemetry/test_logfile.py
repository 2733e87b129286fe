import os
import resource
import threading

import pytest

from trainmaster.executors.supervisor import samples
from trainmaster.executors.telemetry import logfile
from trainmaster.executors.telemetry.logfile import LogFile
from trainmaster.executors.telemetry.logs import line_start, log_end, read_log

SEGMENT = 1000


@pytest.fixture(params=["splice", "copy"])
def log(request, tmp_path, monkeypatch):
    if request.param == "copy":
        monkeypatch.delattr(os, "splice")
    return LogFile(str(tmp_path / "worker-0.log"), SEGMENT)


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def feed(log: LogFile, pipe, data: bytes) -> None:
    for start in range(0, len(data), 4096):
        os.write(pipe[1], data[start : start + 4096])
        while log.take(pipe[0], 300):
            pass


def read_all(directory, limit=77):
    data, dropped, offset = b"", [], 0
    while True:
        chunk = read_log(directory, "worker-0", offset, limit, SEGMENT)
        if chunk.next_offset == offset:
            return data, dropped
        if chunk.dropped_bytes:
            dropped.append((len(data), chunk.dropped_bytes))
        data += chunk.data
        offset = chunk.next_offset


def test_short(log, pipe, tmp_path):
    feed(log, pipe, b"\xffhello\n")
    assert log.take(pipe[0], 100) is None
    log.close()
    assert read_all(tmp_path) == (b"\xffhello\n", [])


def test_end_of_pipe(tmp_path):
    reading, writing = os.pipe()
    os.close(writing)
    assert LogFile(str(tmp_path / "worker-0.log")).take(reading, 100) == 0
    os.close(reading)


@pytest.mark.parametrize("size", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 4 * SEGMENT, 4 * SEGMENT + 1, 12_345])
def test_first_and_last_are_kept(log, pipe, tmp_path, size):
    output = bytes(index * 7 % 251 for index in range(size))
    feed(log, pipe, output)
    log.close()
    data, dropped = read_all(tmp_path)
    if size <= 4 * SEGMENT:
        assert (data, dropped) == (output, [])
    else:
        last = (size - 1) // SEGMENT
        start = (last - logfile.KEEP_LAST + 1) * SEGMENT
        assert data == output[:SEGMENT] + output[start:]
        assert dropped == ([(SEGMENT, start - SEGMENT)] if start > SEGMENT else [])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * SEGMENT


def test_follow_while_written(log, pipe, tmp_path):
    offset, seen = 0, b""
    for index in range(200):
        feed(log, pipe, b"line %d\n" % index)
        chunk = read_log(tmp_path, "worker-0", offset, segment_bytes=SEGMENT)
        if chunk.next_offset % SEGMENT == 0 or not chunk.data.endswith(b"\n"):
            rest = read_log(tmp_path, "worker-0", chunk.next_offset, segment_bytes=SEGMENT)
            chunk = rest._replace(data=chunk.data + rest.data)
        offset, seen = chunk.next_offset, seen + chunk.data
    assert seen == b"".join(b"line %d\n" % index for index in range(200))


def test_nothing_there(tmp_path):
    assert read_log(tmp_path, "worker-0", 0) == (b"", 0, 0)
    assert read_log(tmp_path / "gone", "worker-0", 5) == (b"", 5, 0)


def test_old_segments_of_an_earlier_try_go(pipe, tmp_path):
    (tmp_path / "worker-0.log").write_text("old")
    (tmp_path / "worker-0.log.7").write_text("old")
    (tmp_path / "worker-0.log.txt").write_text("not ours")
    log = LogFile(str(tmp_path / "worker-0.log"), SEGMENT)
    feed(log, pipe, b"new")
    log.close()
    assert read_all(tmp_path) == (b"new", [])
    assert (tmp_path / "worker-0.log.txt").exists()


def test_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        LogFile(str(tmp_path / "file" / "worker-0.log"))


@pytest.mark.parametrize("splices", [True, False])
def test_full_disk(pipe, tmp_path, monkeypatch, splices):
    """What finds no room is dropped and noted; when there is room again, it goes on."""
    if not splices:
        monkeypatch.delattr(os, "splice")
    log = LogFile(str(tmp_path / "worker-0.log"))
    feed(log, pipe, b"x" * 3000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        feed(log, pipe, b"y" * 5000)
        assert log.lost_bytes == 5000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    feed(log, pipe, b"z")
    log.close()
    data = (tmp_path / "worker-0.log").read_bytes()
    assert data.startswith(b"x" * 3000 + b"\n[trainmaster: 5000 bytes of output could not be written: ")
    assert data.endswith(b"]\nz")
    assert log.lost_bytes == 0


@pytest.mark.parametrize("text", [b"", b"one\ntwo\n", b"one\ntw", b"0123456\n", b"0123456\n89", b"x" * 40])
def test_where_a_log_ends_and_its_last_line_begins(tmp_path, text):
    for begin in range(0, max(len(text), 1), 16):
        (tmp_path / f"worker-0.log{f'.{begin // 16}' if begin else ''}").write_bytes(text[begin : begin + 16])
    end = log_end(tmp_path, "worker-0", 16)
    assert end == len(text)
    rest = text[32:] if text.startswith(b"xx") else text.rpartition(b"\n")[2]
    assert line_start(tmp_path, "worker-0", end, 16) == end - len(rest)


def test_its_size_counts_what_was_dropped_too(log, pipe, tmp_path):
    reading, writing = pipe
    for count in range(1, 9):
        os.write(writing, b"x" * 700)
        while log.take(reading, 1 << 20):
            pass
        assert log.size == 700 * count == log_end(tmp_path, "worker-0", SEGMENT)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_a_script_puts_in_the_place_of_a_segment_stops_nobody(log, pipe, tmp_path, kind):
    place, other = tmp_path / "worker-0.log.1", tmp_path / "other"
    other.write_bytes(b"kept")
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(other)
    fed = threading.Thread(target=feed, args=(log, pipe, b"x" * (SEGMENT + 500)), daemon=True)
    fed.start()
    fed.join(20)
    assert not fed.is_alive()
    assert log.lost_bytes in (500, 600)  # as it was copied, some of it was written before
    assert other.read_bytes() == b"kept"


def test_samples_go_into_no_pipe_and_through_no_link(tmp_path):
    os.mkfifo(tmp_path / "samples.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("samples.jsonl", "link"):
        put = threading.Thread(target=samples._append, args=(str(tmp_path / name), [{"a": 1}]), daemon=True)
        put.start()
        put.join(20)
        assert not put.is_alive()
    assert not (tmp_path / "other").exists()
