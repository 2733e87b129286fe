"""The provider `slurm` keeps what every provider promises, on a real Slurm of three nodes."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from trainmaster.providers.base import NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import BUILT_IN
from trainmaster.providers.slurm.provider import SlurmProvider
from trainmaster.providers.slurm.scripts import END_OF_JOB
from trainmaster.providers.slurm.settings import SLURM
from trainmaster.providers.slurm.shell import SlurmShell
from trainmaster.spec.clocks import steady_s
from trainmaster.testing.private_slurm import NoSlurmError, PrivateSlurm, check_installed
from trainmaster.testing.provider_contract import ProviderContract
from trainmaster.transport.base import Result

SETTINGS = """\
scratch: {scratch}
machines:
  small: {{cpus: 1, memory: 200MB, usd_per_hour: 0.25}}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    """One for all tests of this file."""
    try:
        check_installed()
    except NoSlurmError as error:
        pytest.skip(str(error))
    with PrivateSlurm(3) as running:
        yield running


class WatchedShell(SlurmShell):
    """Keeps what it was told."""

    told: list[str]

    def run(self, script: str) -> Result:
        """See `SlurmShell`."""
        self.told.append(script)
        return super().run(script)


class SlurmBench:
    """The provider on a real Slurm."""

    def __init__(self, slurm: PrivateSlurm, root: Path) -> None:
        self.slurm, self.root, self.told, self.ahead_s = slurm, root, list[str](), 0.0
        self.names = {name: uuid.uuid4().hex for name in ("home", "neighbour")}

    def home(self, name: str) -> SlurmProvider:
        """A provider of another process, for a home."""
        place = ProviderPlace(self.root / name, self.names[name], self.slurm.environ)
        place.root.mkdir(exist_ok=True)
        (place.root / "slurm.yaml").write_text(SETTINGS.format(scratch=self.root))
        settings = SLURM.read(place.root, {})
        shell = WatchedShell(settings, place)
        shell.told = self.told
        return SlurmProvider(settings, place, shell, clock=lambda: steady_s() + self.ahead_s)

    def provider(self) -> SlurmProvider:
        """See `ProviderBench`."""
        return self.home("home")

    def neighbour(self) -> SlurmProvider:
        """See `ProviderBench`."""
        return self.home("neighbour")

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:
        """See `ProviderBench`."""
        return replace(NodeRequest(role, 1, "small", token="t"), **changes)

    def sent(self) -> list[dict[str, Any]]:
        """See `ProviderBench`."""
        jobs = [
            found[1]
            for script in self.told
            if "--test-only" not in script
            if (found := re.search(rf"<<'{END_OF_JOB}'\n(.*)\n{END_OF_JOB}\n", script, re.DOTALL))
        ]
        self.told.clear()
        return [
            {"service": "slurm", "operation": "sbatch", "parameters": {"script": job.split("\n")}}
            for job in jobs
        ]

    def changed(self) -> list[str]:
        """See `ProviderBench`."""
        words = [word for script in self.told for word in ("scancel", "scontrol update") if word in script]
        return words + [each["operation"] for each in self.sent()]

    @contextlib.contextmanager
    def _partition(self, change: str, back: str) -> Iterator[None]:
        self.slurm.command("scontrol", "update", "PartitionName=main", change)
        yield
        self.slurm.command("scontrol", "update", "PartitionName=main", back)

    def without_capacity(self) -> contextlib.AbstractContextManager[None]:
        """See `ProviderBench`."""
        return self._partition("State=INACTIVE", "State=UP")

    def without_permission(self) -> contextlib.AbstractContextManager[None]:
        """See `ProviderBench`."""
        return self._partition("DisableRootJobs=YES", "DisableRootJobs=NO")

    def later(self, seconds: float) -> None:
        """See `ProviderBench`."""
        self.ahead_s += seconds

    def left(self) -> list[str]:
        """See `ProviderBench`."""
        return self.slurm.jobs()


@pytest.fixture
def bench(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[SlurmBench]:
    """A Slurm without jobs."""
    yield SlurmBench(slurm, tmp_path)
    slurm.command("scancel", "-u", "root", check=False)


def until(condition: Callable[[], Any], patience_s: float = 120.0) -> None:
    """Ask again and again."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("is_early", [True, False])
def test_components_are_given_back_singly(bench: SlurmBench, is_early: bool) -> None:
    """The first one without the others, before the job runs and while it does; then nothing is left."""
    provider = bench.provider()
    server, worker = bench.request("ps", token="ps-0"), bench.request(token="worker-0")
    held = bench.request("else", count=3, token="else-0")
    others = bench.provider().acquire("held", held) if is_early else []
    (first,) = provider.acquire("c", replace(server, beside=(worker,)))
    (second,) = provider.acquire("c", replace(worker, beside=(server,)))

    def states() -> list[NodeState]:
        return [node.state for node in provider.nodes("c")]

    if not is_early:
        until(lambda: states() == [NodeState.READY] * 2)
    provider.release("c", [first.id])
    if others:
        provider.release("held")
    until(lambda: states() == [NodeState.GONE, NodeState.READY])
    assert len(bench.left()) == 2
    provider.release("c", [second.id])
    until(lambda: not bench.left())


def test_a_component_that_was_given_back_while_it_waited_is_not_held(bench: SlurmBench) -> None:
    """What others of its job wait for holds its node no longer than it must."""
    provider = bench.provider()
    server, worker = bench.request("ps", token="ps-0"), bench.request(token="worker-0")
    bench.provider().acquire("held", bench.request("else", count=3, token="else-0"))
    (first,) = provider.acquire("c", replace(server, beside=(worker,)))
    (second,) = provider.acquire("c", replace(worker, beside=(server,)))
    provider.release("c", [second.id])
    provider.release("held")
    until(lambda: first.id in {node.id for node in provider.nodes("c") if node.state is NodeState.READY})
    until(lambda: len(bench.left()) == 1)
    assert {node.id: node.state for node in provider.nodes("c")}[first.id] is NodeState.READY
    provider.release("c")
    until(lambda: not bench.left())


class TestSlurm(ProviderContract):
    """Every promise."""

    capabilities = BUILT_IN["slurm"]

    @pytest.fixture
    def bench(self, bench: SlurmBench) -> SlurmBench:
        """See `ProviderContract`."""
        return bench
