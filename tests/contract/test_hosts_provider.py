"""The provider `hosts`: its contract, and how users and runs share hosts; the scripts are the real ones."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.host_claims import (
    MARK,
    MOST_LEASE_S,
    Claim,
    drop_script,
    fit,
    parse,
    read_script,
)
from trainmaster.providers.host_ledger import HostLedger
from trainmaster.providers.hosts import GPU_LABEL, HostsProvider
from trainmaster.providers.inventory import Inventory, InventoryHost
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError
from trainmaster.testing.provider_contract import ProviderContract
from trainmaster.transport.base import Result


class LocalShell:
    """Runs the hosts' scripts on this machine, a directory per host standing for its /var/tmp."""

    def __init__(self, root: Path, uid: int | None = None) -> None:
        self.root = root
        self.uid = uid
        self.silent: set[str] = set()
        self.refusing = False
        self.later_s = 0.0
        self.kernels: dict[str, Path] = {}
        self.written: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def close(self) -> None: ...

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Result | TrainmasterError]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda host: self._run(host, script), hosts))

    def _run(self, host: InventoryHost, script: str) -> Result | TrainmasterError:
        if host.name in self.silent:
            return ProviderError(f"{host.name}: nothing answers for 10 s")
        if self.refusing:
            return UsageError(f"{host.name} does not let alice in", "Try: ssh")
        for line in script.splitlines():
            if line.startswith(("put ", "drop ")) and line != "put() {":
                words = shlex.split(line)
                claim = json.loads(words[3]) if words[0] == "put" else {}
                with self._lock:
                    self.written.append({"do": words[0], "host": host.name, **claim})
        script = script.replace("\ndate +%s\n", f"\necho $(($(date +%s) + {self.later_s:.0f}))\n")
        kernel = self.kernels.get(host.name)
        for place in ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup") if kernel else ():
            script = script.replace(place, f"{kernel}{place}")
        env = {"PATH": os.environ["PATH"], "TRAINMASTER_CLAIMS": str(self.root / host.name)}
        env["OMP_NUM_THREADS"] = "1"  # as a profile may have it: `nproc` goes by it
        done = subprocess.run(
            ["/bin/sh", "-s"],
            user=self.uid,
            group=self.uid,
            input=script,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)


class Bench:
    def __init__(self, root: Path, hosts: Sequence[InventoryHost]) -> None:
        self.root = root
        self.shell = LocalShell(root / "hosts")
        (root / "hosts").mkdir()
        self.inventory = Inventory(file=root / "hosts.yaml", hosts=tuple(hosts))

    def provider(self, home: str = "ours") -> HostsProvider:
        return HostsProvider(self.inventory, self.shell, self.root / home, owner=home)

    def neighbour(self) -> HostsProvider:
        return self.provider("theirs")

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:
        return NodeRequest(**{"role": role, "count": 1, **changes})

    def sent(self) -> list[dict[str, Any]]:
        written, self.shell.written = self.shell.written, []
        keys = ("host", "cluster", "role", "token", "slots", "labels")
        rows = [
            {"operation": "claim", **{key: row[key] for key in keys}} for row in written if row["do"] == "put"
        ]
        return [{**row, "labels": dict(row["labels"])} for row in rows]

    def changed(self) -> list[str]:
        written, self.shell.written = self.shell.written, []
        return [row["do"] for row in written]

    @contextlib.contextmanager
    def without_capacity(self) -> Iterator[None]:
        names = [host.name for host in self.inventory.hosts]
        elsewhere = self.provider("elsewhere")
        elsewhere.acquire("big", NodeRequest("worker", len(names)))
        yield
        elsewhere.release("big")

    @contextlib.contextmanager
    def without_permission(self) -> Iterator[None]:
        self.shell.refusing = True
        yield
        self.shell.refusing = False

    def later(self, seconds: float) -> None:
        self.shell.later_s += seconds

    def left(self) -> list[str]:
        return [str(path) for path in self.shell.root.glob("*/*") if path.is_file()]


def some_hosts(count: int, **fields: Any) -> list[InventoryHost]:
    return [
        InventoryHost(name=f"h{n}", address=f"10.0.0.{n}", user="alice", **fields)
        for n in range(1, count + 1)
    ]


class TestHostsProvider(ProviderContract):
    capabilities = capabilities_of("hosts")

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(tmp_path, some_hosts(8, slots=4, labels={"room": "b"}))

    @pytest.mark.parametrize(
        "changes", [{"require": {"room": "c"}}, {"count": 0}, {"count": 9}, {"slots": 5}]
    )
    def test_preflight_knows_what_there_is(self, bench: Bench, changes: dict[str, Any]) -> None:
        """Types of instances are wishes here; labels, slots and numbers are not."""
        with pytest.raises(UsageError):
            bench.provider().preflight([bench.request(**changes)])
        assert bench.changed() == []
        notes = bench.provider().preflight([bench.request(instance_type="p3.2xlarge")])
        assert any("p3.2xlarge" in note for note in notes)


def test_slots_are_shared_and_never_given_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1, slots=4, gpus=2))
    ours, theirs = bench.provider(), bench.neighbour()
    (first,) = ours.acquire("one", bench.request(slots=2, gpus=1))
    (second,) = theirs.acquire("two", bench.request(slots=2, gpus=1))
    assert (first.slots, first.gpus, second.gpus) == (2, 1, 1)
    assert {first.labels[GPU_LABEL], second.labels[GPU_LABEL]} == {"0", "1"}
    with pytest.raises(NoCapacityError, match=r"4 of 4 slots are used by .*\(one\), .*\(two\)"):
        ours.acquire("three", bench.request(slots=1))
    theirs.release("two")
    assert ours.acquire("three", bench.request(slots=2))[0].state is NodeState.READY
    with pytest.raises(NoCapacityError, match="is used by"):
        theirs.acquire("whole", bench.request())


def test_it_says_how_many_hosts_are_free(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(4))
    bench.neighbour().acquire("one", bench.request(count=3))
    ours = bench.provider()
    assert ours.free_nodes([bench.request(count=4, least=1)]) == [1]
    with pytest.raises(NoCapacityError, match="2 hosts are needed, 1 is free") as told:
        ours.free_nodes([bench.request(count=2)])
    assert told.value.lacking == 1


def test_a_claim_that_is_not_renewed_runs_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    provider = bench.provider()
    provider.acquire("one", bench.request())
    provider.renew("one", 0.0)
    (node,) = provider.nodes("one")
    assert node.state is NodeState.GONE
    assert "lease ran out" in node.reason
    assert bench.neighbour().acquire("two", bench.request())[0].id == "h1"


def test_renewing_moves_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    provider = bench.provider()
    provider.acquire("one", bench.request(lease_s=60.0))
    before = bench.shell.written[-1]["until"]
    provider.renew("one", 600.0)
    assert bench.shell.written[-1]["until"] - before > 500


def test_a_host_that_does_not_answer_is_no_lost_node(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(3))
    provider = bench.provider()
    provider.acquire("one", bench.request(count=2))
    bench.shell.silent = {"h1", "h3"}
    nodes = {node.id: node for node in bench.provider().nodes("one")}
    assert nodes["h1"].state is NodeState.READY
    assert "nothing answers for 10 s" in nodes["h1"].reason
    assert not nodes["h2"].reason
    assert {node.id for node in provider.acquire("one", bench.request(count=2))} == {"h1", "h2"}
    with pytest.raises(NoCapacityError, match="h3: nothing answers"):
        provider.acquire("one", bench.request(token="another"))
    provider.release("one")
    assert provider.nodes("one") == []


def test_hosts_that_left_the_inventory_can_be_given_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(2))
    bench.provider().acquire("one", bench.request(count=2))
    bench.inventory = Inventory(file=bench.inventory.file, hosts=bench.inventory.hosts[1:])
    assert {node.id for node in bench.provider().nodes("one")} == {"h1", "h2"}
    bench.provider().release("one")
    assert bench.left() == []


def test_many_ask_at_the_same_moment_and_each_slot_goes_to_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(2, slots=3))

    def ask(number: int) -> str:
        try:
            return bench.provider(f"home{number}").acquire(f"c{number}", bench.request(slots=1))[0].id
        except NoCapacityError:
            return ""

    with ThreadPoolExecutor(10) as pool:
        given = list(pool.map(ask, range(10)))
    assert sorted(name for name in given if name) == ["h1"] * 3 + ["h2"] * 3, given


def test_what_others_write_into_the_directory_does_no_harm(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1, slots=2))
    place = bench.shell.root / "h1"
    place.mkdir()
    (place / "a.json").write_text("no json\n")
    (place / "b.json").write_text('{"cluster": 1}\n')
    (place / "c.json").write_bytes(b"\xff" * 100_000)
    (place / "d.json").mkdir()
    assert bench.provider().acquire("one", bench.request(slots=2))
    assert len(bench.provider().nodes("one")) == 1


def test_a_directory_that_cannot_be_used_is_done_without(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    (bench.shell.root / "elsewhere").mkdir()
    (bench.shell.root / "h1").symlink_to(bench.shell.root / "elsewhere")
    assert bench.provider().acquire("one", bench.request())
    assert list((bench.shell.root / "elsewhere").iterdir()) == []
    with pytest.raises(NoCapacityError, match="it is used by"):
        bench.neighbour().acquire("two", bench.request())


def test_a_host_without_a_place_for_claims_is_said_to_be_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    bench.shell.root.rmdir()
    bench.shell.root.write_text("a file")
    with pytest.raises(NoCapacityError, match="cannot keep claims there"):
        bench.provider().acquire("one", bench.request())


def test_a_host_whose_disk_is_full_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (("mktemp", "exit 1"), ("df", "echo tmpfs 3072 3072 0 100% /var/tmp")):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(NoCapacityError, match="h1: cannot keep claims there: no space is left for /"):
        bench.provider().acquire("one", bench.request())


def _planted(bench: Bench, **changes: Any) -> dict[str, Any]:
    """A claim as another home may have written it."""
    place = bench.shell.root / "h1.u0"
    place.mkdir(exist_ok=True)
    claim = {
        "cluster": "c", "owner": "theirs", "user": "bob", "role": "worker", "token": "t", "slots": 0,
        "gpus": [], "until": time.time() + 600, "labels": [], **changes,
    }  # fmt: skip
    (place / f"{claim['owner']}.json").write_text(json.dumps(claim))
    return claim


def test_a_link_where_a_claim_will_be_written_leads_nobody_astray(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    _planted(bench, owner="nobody", until=0)
    victim = tmp_path / "victim"
    victim.write_text("whole")
    draft = Claim("one", "ours", "alice", "worker", "", 0, (), 0.0)
    for name in (f".{draft.file}.new", f"{draft.file}.json"):
        (bench.shell.root / "h1.u0" / name).symlink_to(victim)
    assert bench.provider().acquire("one", bench.request())
    assert victim.read_text() == "whole"


def test_what_others_say_of_themselves_is_not_printed_as_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    _planted(bench, user="\x1b]0;evil\x07", cluster="c\u202e" + "x" * 1000)
    with pytest.raises(NoCapacityError) as caught:
        bench.provider().acquire("one", bench.request())
    assert "]0;evil" in str(caught.value)
    assert all(char.isprintable() or char == "\n" for char in str(caught.value))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("until", [1e300, float("inf"), float("nan"), -1, "1e999"])
@pytest.mark.parametrize("slots", [0, -100, 10**30])
def test_nobody_claims_a_host_for_ever_or_less_than_nothing(tmp_path: Path, until: Any, slots: Any) -> None:
    bench = Bench(tmp_path, some_hosts(1, slots=2))
    claim = _planted(bench, until=until, slots=slots)
    now = time.time()
    line = f"5 5 {now:.0f} {json.dumps(claim)}"
    claims = parse(Result(0, f"{MARK}\n{now:.0f}\n7\nv\n0\n{line}", ""), "h1")
    later = replace(claims, now=now + MOST_LEASE_S + 1)
    assert later.live == []
    if slots != 0:
        with pytest.raises(NoCapacityError, match="slots"):
            bench.provider().acquire("one", bench.request(slots=3))
        assert bench.provider().acquire("one", bench.request(slots=2))


def test_who_holds_the_lock_is_named_and_ends_no_lease(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("trainmaster.providers.host_claims._LOCK_WAIT_S", 0)
    bench = Bench(tmp_path, some_hosts(1, slots=4))
    provider = bench.provider()
    provider.acquire("one", bench.request(slots=1, lease_s=60.0))
    place = os.open(bench.shell.root / "h1", os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        with pytest.raises(NoCapacityError, match=rf"process {os.getpid()}\) has held the lock"):
            bench.neighbour().acquire("two", bench.request(slots=1))
        before = bench.shell.written[-1]["until"]
        provider.renew("one", 6000.0)
        assert bench.shell.written[-1]["until"] - before > 500
        (file,) = bench.shell.root.glob("h1.u*/*.json")
        assert json.loads(file.read_text())["until"] > time.time() + 5000
        provider.release("one")
        assert bench.left() == []
    finally:
        os.close(place)


claims = st.dictionaries(
    st.sampled_from(["cluster", "owner", "user", "role", "token", "slots", "gpus", "until", "labels"]),
    st.none()
    | st.text(max_size=9)
    | st.floats()
    | st.integers()
    | st.lists(st.integers() | st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=3), max_size=3),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(claims.map(json.dumps) | st.text(max_size=40), max_size=5), st.text(max_size=30))
def test_whatever_a_host_says_is_read_or_refused(lines: list[str], noise: str) -> None:
    said = "".join(f"{number} {number} 5 {line}\n" for number, line in enumerate(lines))
    for out in (f"{noise}\n{MARK}\n1700000000\n1\nv\n0\n{said}", f"{MARK}\n{noise}\n{said}", said):
        with contextlib.suppress(ProviderError):
            fit(
                some_hosts(1, slots=4)[0],
                parse(Result(0, out, ""), "h1"),
                NodeRequest("w", 1, slots=2),
                Claim("c", "o", "u", "w", "t", 0, (), 0.0),
            )


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_share_a_host_and_neither_takes_the_others_claim(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # others may not look into tmp_path
        place = Path(name)
        (place / "hosts").mkdir()
        place.chmod(0o755)
        (place / "hosts").chmod(0o777)
        inventory = Inventory(file=place / "hosts.yaml", hosts=tuple(some_hosts(1, slots=3)))
        first, second = (
            HostsProvider(inventory, LocalShell(place / "hosts", uid), tmp_path / str(uid), owner=str(uid))
            for uid in (65534, 12345)
        )
        request = NodeRequest("worker", 1, slots=1)
        first.acquire("one", request)
        second.acquire("two", request)
        files = {path.stat().st_uid: path for path in place.glob("hosts/h1.u*/*.json")}
        assert set(files) == {65534, 12345}
        with pytest.raises(NoCapacityError, match="2 of 3 slots are used by"):
            second.acquire("three", NodeRequest("worker", 1, slots=2))
        thief = LocalShell(place / "hosts", 12345)
        thief.run_all(inventory.hosts, drop_script([_claim_in(files[65534])]))
        assert files[65534].exists()
        assert [node.id for node in first.nodes("one")] == ["h1"]
        # Nobody speaks for another one, nor keeps what another one has given back.
        (claim,) = (path for path in place.glob("hosts/h1.u*/*.json") if path.stat().st_uid == 65534)
        (foreign,) = (path for path in place.glob("hosts/h1.u*") if path.stat().st_uid == 12345)
        os.link(claim, foreign / "kept.json")
        forged = foreign / "forged.json"
        forged.write_text(claim.read_text().replace('"token": ""', '"token": "forged"'))
        os.chown(forged, 12345, 12345)
        assert [node.id for node in first.acquire("one", request)] == ["h1"]
        forged.unlink()
        first.release("one")
        second.release("two")
        (foreign / "kept.json").unlink()
        assert not list(place.glob("hosts/*/*.json"))


def _claim_in(file: Path) -> Claim:
    line = f"7 7 {time.time():.0f} {file.read_text()}"
    return parse(Result(0, f"{MARK}\n{time.time():.0f}\n7\nv\n0\n{line}", ""), "h1").own[0]


def test_hosts_are_left_out_where_fewer_will_do(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(3))
    bench.shell.silent = {"h1"}
    provider = bench.provider()
    request = bench.request(count=3, least=2)
    assert provider.preflight([request]) == ["h1 is left out: h1: nothing answers for 10 s"]
    nodes = provider.acquire("one", request)
    assert [(node.id, node.state) for node in nodes] == [
        ("h2", NodeState.READY), ("h3", NodeState.READY), ("h1", NodeState.GONE),
    ]  # fmt: skip
    assert "nothing answers" in nodes[-1].reason
    assert {node.id for node in provider.nodes("one")} == {"h2", "h3"}
    assert [node.id for node in provider.acquire("one", request)][:2] == ["h2", "h3"], "the same again"
    provider.release("one")
    with pytest.raises(NoCapacityError):
        provider.acquire("two", bench.request(count=3))
    bench.shell.silent = {"h1", "h2"}
    with pytest.raises(NoCapacityError, match="2 hosts are needed, 1 is free"):
        provider.acquire("three", request)
    with pytest.raises(ProviderError, match="1 host for 2 worker nodes"):
        provider.preflight([request])


def test_roles_that_are_asked_for_side_by_side_are_all_remembered(tmp_path: Path) -> None:
    """Else nobody would look for the first ones again, and nobody give them back."""
    provider = Bench(tmp_path, some_hosts(4)).provider()
    both = threading.Barrier(2)

    def ask(role: str) -> list[str]:
        both.wait()
        return [node.id for node in provider.acquire("run.train", NodeRequest(role, 2, token=role))]

    with ThreadPoolExecutor(2) as pool:
        workers, servers = pool.map(ask, ("worker", "ps"))
    assert len({*workers, *servers}) == 4
    assert {node.id: node.role for node in provider.nodes("run.train")} == {
        **dict.fromkeys(workers, "worker"),
        **dict.fromkeys(servers, "ps"),
    }
    provider.release("run.train")
    assert not any((tmp_path / "hosts").glob("*/*.json")), "every claim is gone"


# --- memory ------------------------------------------------------------------------------------------------


def kernel(root: Path, gigabytes: float, groups: str = "0::/", **limits: str) -> Path:
    """What ``/proc`` and ``/sys`` of a host say."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {gigabytes * 1e9 / 1024:.0f} kB\nMemFree: 5 kB\n")
    (root / "proc/self/cgroup").write_text(groups + "\n")
    for place, limit in limits.items():
        path = root / "sys/fs/cgroup" / place.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/", {}, 8e9),
        ("0::/", {"memory_dot_max": "max"}, 8e9),
        ("0::/user/one", {"user__memory_dot_max": "3000000000", "user__one__memory_dot_max": "max"}, 3e9),
        ("0::/user/one", {"user__one__memory_dot_max": "99000000000"}, 8e9),
        (
            "5:cpu:/x\n4:cpuset,memory:/user/one",
            {
                "memory__user__one__memory_dot_limit_in_bytes": "2000000000",
                "memory__memory_dot_limit_in_bytes": "9223372036854771712",
            },
            2e9,
        ),
    ],
)
def test_a_host_says_how_much_memory_it_has(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: float
) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    bench.shell.kernels["h1"] = kernel(tmp_path / "kernel", 8, groups, **limits)
    (answer,) = bench.shell.run_all(bench.inventory.hosts, read_script())
    assert isinstance(answer, Result)
    assert parse(answer, "h1").memory_bytes == pytest.approx(expected, abs=1024)


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu_dot_max": "max 100000"}, None),
        ("0::/user/one", {"user__cpu_dot_max": "50000 100000", "user__one__cpu_dot_max": "max 100000"}, 0.5),
        (
            "5:cpu,cpuacct:/x\n4:cpuset,memory:/user",
            {"cpu__x__cpu_dot_cfs_quota_us": "25000", "cpu__x__cpu_dot_cfs_period_us": "100000"},
            0.25,
        ),
        ("1:cpu:/", {"cpu__cpu_dot_cfs_quota_us": "-1", "cpu__cpu_dot_cfs_period_us": "100000"}, None),
    ],
)
def test_a_host_says_how_many_processors_a_login_may_use(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: float | None
) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    bench.shell.kernels["h1"] = kernel(tmp_path / "kernel", 8, groups, **limits)
    bench.provider().preflight([bench.request()])
    told = HostLedger(tmp_path / "ours").cores()
    assert told == {"h1": len(os.sched_getaffinity(0)) if expected is None else expected}


def test_hosts_with_too_little_memory_are_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(3))
    for name, gigabytes in (("h1", 2), ("h2", 16), ("h3", 8)):
        bench.shell.kernels[name] = kernel(tmp_path / name, gigabytes)
    needs = bench.request(count=3, least=1, memory_bytes=6_000_000_000)
    (note,) = bench.provider().preflight([needs])
    assert note == "h1 is left out: it has 2 GB of memory, 6 GB are needed"
    nodes = bench.provider().acquire("one", needs)
    assert {node.id for node in nodes if node.state is NodeState.READY} == {"h2", "h3"}
    assert [node.id for node in nodes if node.state is NodeState.GONE] == ["h1"]
    with pytest.raises(UsageError, match=r"2 hosts for 3 worker nodes \(h1: it has 2 GB of memory, 6 GB"):
        bench.provider().preflight([bench.request(count=3, memory_bytes=6_000_000_000)])
    sizes = HostLedger(tmp_path / "ours").sizes()
    assert {name: round(size / 1e9) for name, size in sizes.items()} == {"h1": 2, "h2": 16, "h3": 8}


def test_a_host_that_does_not_say_is_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(1))
    bench.shell.kernels["h1"] = tmp_path / "nothing"
    assert bench.provider().preflight([bench.request(memory_bytes=1 << 60)]) == []


# --- what each role needs ----------------------------------------------------------------------------------


def test_a_role_leaves_the_larger_hosts_to_those_that_need_them(tmp_path: Path) -> None:
    large, small = some_hosts(2)
    large = InventoryHost(**{**dict(large), "gpus": 2, "slots": 8})
    small = InventoryHost(**{**dict(small), "slots": 2})
    bench = Bench(tmp_path, [large, small])
    requests = [bench.request(cpus=1), bench.request("ps", gpus=1, cpus=8)]
    assert bench.provider().preflight(requests) == []
    worker, server = (bench.provider().acquire("one", request)[0].id for request in requests)
    assert (worker, server) == ("h2", "h1"), "though it comes second in the inventory"


def test_what_no_host_has_is_refused_with_the_most_that_one_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path, some_hosts(2, slots=4, gpus=1))
    for name, gigabytes in (("h1", 2), ("h2", 16)):
        bench.shell.kernels[name] = kernel(tmp_path / name, gigabytes)
    with pytest.raises(
        UsageError, match=r"0 hosts for 1 worker node .*h2: it has 16 GB of memory, 64 GB"
    ) as no:
        bench.provider().preflight([bench.request(memory_bytes=64_000_000_000)])
    assert no.value.hint == (
        "The most that one has: 4 slots, 1 GPU, 16 GB. List more hosts there, or ask for less."
    )
    with pytest.raises(NoCapacityError, match="it has 4 slots, 5 are wanted"):
        bench.provider().acquire("one", bench.request(cpus=5))
