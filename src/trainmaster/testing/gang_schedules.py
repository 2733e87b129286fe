"""Schedules of gangs over several supervisors, with faults between any two messages, each drawn from a seed.

    python -m trainmaster.testing.gang_schedules --seed 17 --verbose

Members react to each other: when one fails or is lost, others fail, end well or hang. Invariants are those of
`SimulatedGangs`, and that every gang comes to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from random import Random
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.executors.base import GangRequest, GangStatus, MemberRequest, Phase
from trainmaster.testing.simulated_gangs import SimulatedGangs, SimulatedLink, SimulatedPlace
from trainmaster.testing.simulated_node import Ending
from trainmaster.testing.simulated_world import ViolationError, World
from trainmaster.testing.simulation import SimulationReport, replayed, report_of

_SLOTS: Final = 2
#: After the last fault everything has to end within so long.
_REST_S: Final = 400.0
#: What was decided has reached everybody after so long, but over links that are cut.
_LATE_S: Final = 15.0
#: How a member ends when one that it works with has failed or was lost; None hangs.
_REACTIONS: Final = (Ending(0.0, 1), Ending(0.0, None, 6), Ending(0.0, 0), None)


@dataclass(slots=True)
class _Driver:
    """Submits gangs, launches and stops them, and forgets those that have ended."""

    schedule: GangSchedule
    epoch: int = 0

    def tell(self, status: GangStatus) -> None:
        """There is news; it is heeded some time later."""
        gangs, attempt = self.schedule.gangs, status.attempt
        self.schedule.seen[attempt] = status
        if status.phase is Phase.GRANTED:
            gangs.later(lambda: gangs.launch(attempt))


class GangSchedule:
    """One schedule.

    Args:
        seed: of the schedule.
        verbose: print it.
    """

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.world = World(seed, verbose=verbose)
        self.seen: dict[str, GangStatus] = {}
        rng = self.world.rng
        nodes = rng.randint(2, 4)
        places = [SimulatedPlace(f"n{n}", f"10.0.0.{n}", f"i-{n}") for n in range(nodes)]
        self.gangs = SimulatedGangs(self.world, _SLOTS, places, self._behave, lambda _: None)
        self._driver = _Driver(self)
        self._requests = [self._draw(f"r/e/{number}/1", nodes) for number in range(rng.choice((1, 1, 2)))]
        self._hangs = rng.random() < 0.3
        self._reacted: set[str] = set()
        self._granted: dict[str, float] = {}

    def go(self) -> None:
        """Run the schedule to its end.

        Raises:
            ViolationError: an invariant does not hold.
        """
        world, rng = self.world, self.world.rng
        self.gangs.clients.append(self._driver)
        for request in self._requests:
            world.note(str(request))
            self.gangs.submit(self._driver, request)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            world.after(rng.choice((rng.random() * 0.3, rng.uniform(0, 60))), self._strike)
        away = Random(f"{world.seed}/away")  # noqa: S311 - a schedule that replays, not a secret
        if away.random() < 0.3:
            away_s = away.choice((5.0, 25.0, 80.0))
            world.after(away.uniform(0, 60), lambda: self.gangs.leave(away_s))
        for _ in range(50):
            world.pass_time(world.now + 2.0)
            self._react()
            self._connect()
            self._look()
            world.require()
        if self.gangs.is_away:
            self.gangs.begin_anew()
        self._connect()
        for request in self._requests:
            self.gangs.stop(request.attempt, 5.0)
        world.pass_time(world.now + _REST_S)
        world.require()
        for attempt, gang in self.gangs.gangs.items():
            if gang.parts and gang.phase is not Phase.EXITED:
                raise ViolationError(f"{attempt} is {gang.phase} at the end")
        for request in self._requests:
            if living := self.gangs.living(request.attempt):
                raise ViolationError(f"{', '.join(living)} of {request.attempt} live at the end")
            if self.seen[request.attempt].phase not in (Phase.EXITED, Phase.UNKNOWN, Phase.QUEUED):
                raise ViolationError(f"{request.attempt} is told to be {self.seen[request.attempt].phase}")

    def _look(self) -> None:
        """Nothing waits for what has been decided for long."""
        if self.gangs.is_away:
            self._granted.clear()
            return
        for attempt in self._granted.keys() - self.gangs.gangs.keys():
            del self._granted[attempt]  # it was given up, and may be submitted again
        for attempt, gang in self.gangs.gangs.items():
            silent = [link.cut_until for link in self.gangs.links.values()]
            if gang.granted or gang.launched:
                silent.append(self._granted.setdefault(attempt, self.world.now))
                waiting = [part.name for part in gang.parts if not part.over and not part.started]
                if waiting and gang.kill_at is None and self.world.now > max(silent) + _LATE_S:
                    self.world.fail(f"{', '.join(waiting)} wait still, though they were to be launched")
            if gang.kill_at is None or self.world.now < gang.kill_at + _LATE_S or gang.alone:
                continue
            if unasked := [part.name for part in gang.parts if not part.over and part.asked is None]:
                self.world.fail(f"{', '.join(unasked)} are not asked to end")

    def _draw(self, attempt: str, nodes: int) -> GangRequest:
        rng = self.world.rng
        count = rng.randint(1, nodes * _SLOTS)
        serving = rng.choice((0, 0, 1, 2))
        members = tuple(
            MemberRequest(
                f"member-{number}",
                "true",
                "/",
                essential=number >= serving or number == count - 1,
                dispensable=0 < number < count - 1 and rng.random() < 0.2,
            )
            for number in range(count)
        )
        grace_s = rng.choice((0.0, 1.0, 20.0))
        return GangRequest(attempt, "/d", members, count, "e", 99, hold=rng.random() < 0.7, grace_s=grace_s)

    def _behave(self, request: GangRequest) -> list[Ending]:
        """Servers wait to be stopped; the others end well, or one of them does not."""
        rng = self.world.rng
        long_s = rng.choice((0.1, 5.0, 50.0))
        bad = rng.choice((0.0, 0.0, 0.3))
        return [
            Ending(long_s * rng.uniform(0.8, 1.0), 1 if rng.random() < bad else 0)
            if member.essential
            else Ending(10_000.0, 0)
            for member in request.members
        ]

    def _strike(self) -> None:
        """Let something go wrong."""
        world, rng = self.world, self.world.rng
        links = [link for link in self.gangs.links.values() if not link.is_dead]
        kind = rng.choice(("end", "end", "off", "supervisor", "break", "cut", "anew", "stop"))
        if not links or (len(links) == 1 and kind in ("end", "off")):
            return
        link = rng.choice(links)
        world.note(f"{kind} {link.place.key}")
        if kind == "off":
            link.host.end_members(15)
        if kind in ("end", "off"):
            world.after(rng.choice((0.0, 0.5)) * rng.random(), lambda: self._end(link))
        elif kind == "supervisor":
            self.gangs.kill_supervisor(link.place.key)
        elif kind == "break":
            link.break_off()
        elif kind == "cut":
            link.cut_until = max(link.cut_until, world.now + rng.choice((1.0, 10.0, 40.0)))
        elif kind == "anew":
            self.gangs.begin_anew()
        else:
            attempt = rng.choice(self._requests).attempt
            self.gangs.stop(attempt, rng.choice((0.0, 5.0)))

    def _end(self, link: SimulatedLink) -> None:
        if not link.is_dead:
            self.gangs.end_node(link.place.key)
            self.world.after(self.world.rng.uniform(0.5, 6.0), lambda: self.gangs.lost(link))

    def _react(self) -> None:
        """Members see that others have failed, or are gone."""
        is_dead = any(link.is_dead for link in self.gangs.links.values())
        for attempt, gang in self.gangs.gangs.items():
            if attempt in self._reacted or not gang.launched:
                continue
            rows = gang.members().values()
            if is_dead or any(row.ended_at is not None and row.exit_code != 0 for row in rows):
                self._reacted.add(attempt)
                for link in self.gangs.links.values():
                    link.host.react(attempt, self._reaction)

    def _reaction(self) -> tuple[float, Ending | None]:
        return self.world.rng.uniform(0, 30.0), self.world.rng.choice(_REACTIONS)

    def _connect(self) -> None:
        """A driver that has begun again asks for all that it knows."""
        if self._driver.epoch == self.gangs.epoch:
            return
        self._driver.epoch = self.gangs.epoch
        self.gangs.clients.append(self._driver)
        for request in self._requests:
            status = self.gangs.status(request.attempt)
            if status.phase is Phase.UNKNOWN and self.world.chance(0.5):
                self.gangs.submit(self._driver, request)
            else:
                self._driver.tell(status)


def simulate(seeds: Iterable[int]) -> SimulationReport:
    """Run many schedules.

    >>> simulate(range(20)).failures
    {}
    """
    return report_of(seeds, _run)


def _run(seed: int, *, verbose: bool = False) -> Iterable[str]:
    GangSchedule(seed, verbose=verbose).go()
    return ()


if __name__ == "__main__":
    sys.exit(replayed(_run, "gang_schedules"))
