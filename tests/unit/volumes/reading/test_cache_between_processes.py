"""What the processes of a node owe each other, also when they are killed."""

import random

import pytest
from chunk_sources import SLOT, MadeSource, kill, python, read

from trainmaster.testing.waits import until
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.slot_table import VALID

COMMON = """
import sys, random, time
from pathlib import Path
from chunk_sources import *
from trainmaster.volumes.reading.cache import ChunkCache
place = Path(sys.argv[1])
source = MadeSource(place / "fetches")
cache = ChunkCache(place / "chunks", slot_bytes=SLOT)
print("open", flush=True)
"""


@pytest.fixture
def source(tmp_path):
    return MadeSource(tmp_path / "fetches")


@pytest.fixture
def cache(tmp_path):
    return ChunkCache(tmp_path / "chunks", slot_bytes=SLOT, limit_bytes=4 * SLOT, patience_s=5)


def started(program, tmp_path, *arguments):
    process = python(COMMON + program, tmp_path, *arguments)
    assert process.stdout.readline() == "open\n"
    return process


def test_two_cold_readers_fetch_each_chunk_once(tmp_path, source, cache):
    program = "sys.stdin.readline()\nfor number in range(4): read(cache, source, number)\nprint('done')"
    readers = [started(program, tmp_path) for _ in range(2)]
    for reader in readers:
        reader.stdin.write("go\n")
        reader.stdin.flush()
    for reader in readers:
        assert reader.communicate(timeout=30)[0] == "done\n"
    assert sorted(source.fetches()) == [0, 1, 2, 3]


def test_pins_hold_against_other_processes_and_end_with_theirs(tmp_path, source, cache):
    program = (
        "placed = cache.obtain(source.chunk(0), pinned=True)\nprint('pinned', flush=True)\ntime.sleep(60)"
    )
    reader = started(program, tmp_path)
    assert reader.stdout.readline() == "pinned\n"
    for number in range(1, 9):
        read(cache, source, number)
    assert cache.find(source.chunk(0)) is not None
    kill(reader)
    for number in range(1, 9):
        read(cache, source, number)
    assert cache.find(source.chunk(0)) is None


def test_who_is_killed_while_fetching_is_replaced(tmp_path, source, cache):
    program = (
        "def wait(chunk):\n    print('fetching', flush=True); time.sleep(60)\n"
        "source.before_fetch = wait\ncache.obtain(source.chunk(0))"
    )
    reader = started(program, tmp_path)
    assert reader.stdout.readline() == "fetching\n"
    assert cache.find(source.chunk(0)) is None
    kill(reader)
    read(cache, source, 0)
    assert source.fetches() == [0, 0]
    for number in range(8):
        read(cache, source, number)


def test_an_order_ends_when_its_reader_is_killed(tmp_path, source, cache):
    program = (
        "import numpy as np\nfrom trainmaster.volumes.reading.orders import AnnouncedOrder\n"
        "order = AnnouncedOrder(cache.orders, np.array([source.chunk(0).prefix], np.uint64), np.array([9]))\n"
        "print('announced', flush=True)\ntime.sleep(60)"
    )
    read(cache, source, 0)
    reader = started(program, tmp_path)
    assert reader.stdout.readline() == "announced\n"
    for number in range(1, 9):
        read(cache, source, number)
    assert cache.find(source.chunk(0)) is not None
    kill(reader)
    for number in range(1, 9):
        read(cache, source, number)
    assert cache.find(source.chunk(0)) is None


def test_killed_at_any_moment_no_slot_claims_what_it_does_not_hold(tmp_path, source, cache):
    program = "rng = random.Random(int(sys.argv[2]))\nwhile True: read(cache, source, rng.randrange(9))"
    rng = random.Random(1)
    for attempt in range(2):
        readers = [started(program, tmp_path, f"{attempt}{number}") for number in range(2)]
        enough = len(source.fetches()) + rng.randrange(1, 20)
        until(lambda enough=enough: len(source.fetches()) >= enough, "they fetch")
        for reader in readers:
            kill(reader)
        table = cache.slots.table
        keys = {source.chunk(number).key: number for number in range(9)}
        for slot, state in enumerate(table.states().tolist()):
            if state == VALID:
                number = keys[table.key(slot)]
                data = source.data(number)
                assert bytes(cache.slots.view(slot, 0, len(data))) == data
    for number in range(9):
        read(cache, source, number)
