"""What hosts get from each other is measured once, between those that nothing uses."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from trainmaster.providers.host_claims import MARK, Claim
from trainmaster.providers.host_ledger import HostLedger
from trainmaster.providers.hosts import HostsProvider
from trainmaster.providers.inventory import Inventory, InventoryHost
from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import Result


class Silent:
    """Hosts that do not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def close(self) -> None: ...

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Result | TrainmasterError]:
        self.asked += 1
        return [TrainmasterError("it does not answer", "Look at it.") for _ in hosts]


class Shell:
    """Hosts of which the first is used by somebody; the last gets nothing from its neighbour."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], bool]] = []

    def close(self) -> None: ...

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Result | TrainmasterError]:
        is_probe = "trainmaster-probe" in script
        self.asked.append(([host.name for host in hosts], is_probe))
        return [Result(0, self._probe(host) if is_probe else self._claims(host), "") for host in hosts]

    @staticmethod
    def _probe(host: InventoryHost) -> str:
        rates = {"h1": 940.0, "h2": 90.0, "h3": 0.0}
        told = {"mbps": rates[host.name], "met": ["h1", "h2", "h3"], "why": {}, "builds": {}, "driver": ""}
        return f"@@trainmaster-probe {json.dumps(told)}\n"

    @staticmethod
    def _claims(host: InventoryHost) -> str:
        now = int(time.time())
        claim = Claim("theirs", "other", "bob", "worker", "t", 0, (), now + 600.0)
        lines = [str(now), "0", "v", "1000000000 500", *([f"7 7 {now} {claim.text()}"] * (host.name == "h1"))]
        return "\n".join([MARK, *lines]) + "\n"


def test_hosts_are_asked_once_and_those_in_use_send_nothing(tmp_path: Path) -> None:
    hosts = tuple(InventoryHost(name=f"h{n}", address=f"10.0.0.{n}") for n in (1, 2, 3))
    shell, ledger = Shell(), HostLedger(tmp_path)
    provider = HostsProvider(Inventory(file=tmp_path / "hosts.yaml", hosts=hosts), shell, tmp_path, "home")
    provider.learn(network=False)
    assert shell.asked == [(["h1", "h2", "h3"], False)]
    provider.learn(network=False)
    assert len(shell.asked) == 1, "it is known what each has"
    provider.learn(network=True)
    assert shell.asked[1:] == [(["h1", "h2", "h3"], False), (["h2", "h3"], True)]
    assert ledger.mbps() == {"h2": 90.0}
    provider.learn(network=True)
    assert len(shell.asked) == 3, "where it could not be measured, `doctor` tries again"
    found = provider.examine({})
    assert found[-1].found == "2 hosts at once get 90 Mbit/s or more from each other"


def test_hosts_that_do_not_answer_are_not_waited_for_by_each_quote(tmp_path: Path, monkeypatch) -> None:
    hosts = tuple(InventoryHost(name=f"h{n}", address=f"10.0.0.{n}") for n in (1, 2))
    shell, now = Silent(), time.time()
    provider = HostsProvider(Inventory(file=tmp_path / "hosts.yaml", hosts=hosts), shell, tmp_path, "home")
    looks = ((False, 0, 1), (False, 1, 1), (True, 2, 2), (True, 60, 2), (True, 200, 3))
    for network, after_s, asked in looks:
        monkeypatch.setattr(time, "time", lambda at=now + after_s: at)
        provider.learn(network=network)
        assert shell.asked == asked
