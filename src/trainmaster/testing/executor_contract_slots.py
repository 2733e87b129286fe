"""The contract of executors: which gang gets slots and ports."""

from __future__ import annotations

from trainmaster.executors.base import Executor, MemberRequest, Phase
from trainmaster.testing.executor_contract_tools import ContractTools


class SlotContract(ContractTools):
    """Slots and ports."""

    def test_order(self, executor: Executor) -> None:
        """First come, first served."""
        gangs = [self.gang(str(index), f"echo {index} >> order", slots=4) for index in range(8)]
        executor.submit(gangs)
        self.wait(executor, gangs[-1])
        assert (self.directory / "order").read_text().split() == [str(index) for index in range(8)]

    def test_slots_are_kept(self, executor: Executor) -> None:
        """Never more at once than the node has, nor than the group may take."""
        wide = [self.gang(f"wide-{index}", "sleep 0.05", slots=2) for index in range(6)]
        narrow = [
            self.gang(f"narrow-{index}", "sleep 0.02", group="narrow", group_slots=1) for index in range(6)
        ]
        executor.submit([*wide, *narrow])
        gangs = [*wide, *narrow]
        statuses = [self.wait(executor, gang) for gang in gangs]
        # one that ends when another starts shares no moment with it, but for the clocks
        spans = [(status.started_at or 0, (status.ended_at or 0) - 0.003) for status in statuses]
        slots = [gang.slots for gang in gangs]
        for start, _ in spans:
            live = [slots[index] for index, (begin, end) in enumerate(spans) if begin <= start < end]
            assert sum(live) <= self.slots
            assert sum(begin <= start < end for begin, end in spans[len(wide) :]) <= 1

    def test_oversize_gang_runs_alone(self, executor: Executor) -> None:
        """It waits until nothing else runs."""
        small = self.gang("0", "until [ -e go ]; do sleep 0.02; done")
        large = self.gang("1", "true", "true", slots=9, group_slots=1)
        executor.submit([small])
        self.wait(executor, small, Phase.RUNNING)
        executor.submit([large])
        assert executor.observe([large.attempt])[0].phase is Phase.QUEUED
        (self.directory / "go").touch()
        assert [member.exit_code for member in self.wait(executor, large).members] == [0, 0]

    def test_ports(self, executor: Executor) -> None:
        """Held from GRANTED until the start, then free for the member; never given to two gangs."""
        listen = (
            "exec python3 -c 'import os, socket; s = socket.socket(); "
            's.bind(("127.0.0.1", int(os.environ["PORT"]))); s.listen(); print("listens")\''
        )
        gangs = []
        for task in ("0", "1"):
            members = [
                MemberRequest(name=f"worker-{index}", script=listen, cwd=str(self.directory), ports=2 - index)
                for index in range(2)
            ]
            gangs.append(self.request(task, members, hold=True))
        executor.submit(gangs)
        granted = [self.wait(executor, gang, Phase.GRANTED) for gang in gangs]
        ports = [port for status in granted for held in status.ports.values() for port in held]
        assert [len(held) for held in granted[0].ports.values()] == [2, 1]
        assert len(set(ports)) == 6
        for gang, status in zip(gangs, granted, strict=True):
            env = {name: {"PORT": str(held[0])} for name, held in status.ports.items()}
            executor.launch(gang.attempt, env)
            executor.launch(gang.attempt, env)
            assert [member.exit_code for member in self.wait(executor, gang).members] == [0, 0]
