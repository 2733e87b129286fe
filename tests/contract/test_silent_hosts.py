"""Hosts that were silent when they were given back, and answer again."""

from __future__ import annotations

from pathlib import Path

from test_hosts_provider import Bench, some_hosts


def test_one_is_free_when_its_cluster_ends(tmp_path: Path) -> None:
    """Not only when its claim has run out: others wait for it."""
    bench = Bench(tmp_path, some_hosts(2))
    provider = bench.provider()
    provider.acquire("one", bench.request(count=2))
    bench.shell.silent = {"h2"}
    provider.release("one", ["h2"])
    bench.shell.silent = set()
    provider.release("one")
    assert len(bench.neighbour().acquire("two", bench.request(count=2))) == 2


def test_a_host_that_was_silent_when_it_was_given_back_can_be_had_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    provider = bench.provider()
    provider.acquire("one", bench.request(token="first"))
    bench.shell.silent = {"h1"}
    provider.release("one", ["h1"])
    bench.shell.silent = set()
    assert [node.id for node in provider.acquire("one", bench.request(token="second"))] == ["h1"]
