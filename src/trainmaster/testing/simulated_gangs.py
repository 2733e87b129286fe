"""`SimulatedGangs`: gangs over several supervisors in simulated time, by the rules that the driver heeds.

What is decided is the real `ConductedGang`. Stood in for are supervisors (`SimulatedNode`) and the way to
them: each command and each piece of news takes its time, is handed over twice after a connection was lost,
and overtakes news of another kind. Between any two messages nodes die, supervisors are killed, and the driver
begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.executors.base import GangRequest, GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.life import (
    Command,
    ConductedGang,
    GangOutcome,
    GangPart,
    Step,
    UnattendedGangs,
    parts_elsewhere,
)
from trainmaster.testing.simulated_node import ConnectedExecutor, Ending, SimulatedNode
from trainmaster.testing.simulated_world import World

_ANY_SLOTS: Final = 1 << 30
#: So long a node waits for its driver before it looks after its gangs, and then looks so often.
_PATIENCE_S: Final = 15.0
_TEND_S: Final = 2.0
#: How long a message takes; the last is one of a connection that was just lost.
_DELAYS_S: Final = (0.0, 0.001, 0.01, 0.01, 0.1, 2.0)


@dataclass(frozen=True, slots=True)
class SimulatedPlace:
    """A node: what members are placed on."""

    key: str
    address: str
    machine: str


class SimulatedLink:
    """The way to one node's supervisor, and what is under way."""

    def __init__(self, gangs: SimulatedGangs, place: SimulatedPlace) -> None:
        self.place = place
        self.host = SimulatedNode(gangs.world, _ANY_SLOTS, gangs.endings, gangs.begins)
        self.is_dead = False
        self.is_attached = False
        self.cut_until = 0.0
        self.commands: list[Command] = []
        self._gangs = gangs
        self._news: dict[str, GangStatus] = {}
        self._is_busy = False
        self._generation = 0

    def send(self, command: Command) -> None:
        """Have the supervisor do something, in order; again if it is not certain that it has."""
        self.commands.append(command)
        self._hurry()

    def tell(self, status: GangStatus) -> None:
        """The supervisor has news; only the newest of each part is kept."""
        if status.phase is Phase.GRANTED:
            self._gangs.held.add(status.attempt)
        if not self._news:
            self._gangs.later(self._pass_on, self)
        self._news[status.attempt] = status

    def break_off(self) -> None:
        """The connection is lost, with what was under way."""
        self.is_attached, self._generation = False, self._generation + 1
        self._is_busy = False
        self._news.clear()
        self._hurry()

    def attach(self) -> None:
        """Connect; what waited there for an earlier connection never starts."""
        self.host.revive()
        self.host.drop_client(self)
        asked = self._gangs.parts_on(self.place)
        for name in asked:
            if self.host.status(name).phase in (Phase.QUEUED, Phase.GRANTED):
                self.host.stop(name, 0.0)
        self.host.clients.append(self)
        self.is_attached = True
        statuses = [self.host.status(name) for name in asked]
        there = {each.attempt for each in statuses if each.phase is not Phase.UNKNOWN}
        unsent: set[str] = set()
        for command in self.commands:
            if command["do"] == "submit":
                command["gangs"] = [each for each in command["gangs"] if each["attempt"] not in there]
                unsent.update(each["attempt"] for each in command["gangs"])
        self._gangs.attached([each for each in statuses if each.attempt not in unsent])

    def _hurry(self) -> None:
        if not self._is_busy and not self.is_dead:
            self._is_busy, generation = True, self._generation
            self._gangs.later(lambda: self._perform(generation), self)

    def _perform(self, generation: int) -> None:
        if self.is_dead or generation != self._generation or self._gangs.is_away:
            return
        if not self.is_attached or self not in self.host.clients:
            self.attach()
        count = len(self.commands)
        checked = [answer for command in list(self.commands) for answer in self._do(command)]
        self._gangs.later(lambda: self._answered(generation, count, checked), self)

    def _answered(self, generation: int, count: int, checked: list[tuple[int, GangStatus]]) -> None:
        if self.is_dead or generation != self._generation:
            return
        self._is_busy = False
        del self.commands[:count]
        self._gangs.checked(checked)
        if self.commands:
            self._hurry()

    def _do(self, command: Command) -> list[tuple[int, GangStatus]]:
        match command["do"]:
            case "submit":
                for each in command["gangs"]:
                    self.host.submit(self, self._gangs.request_of(each))
            case "launch":
                self.host.launch(command["attempt"])
            case "stop":
                self._gangs.judge_stop(command)
                self.host.stop(command["attempt"], command["grace_s"])
            case "check":
                return [(command["turn"], self.host.status(command["attempt"]))]
            case "forget":
                for name in command["attempts"]:
                    self.host.forget(name)
        return []

    def _pass_on(self) -> None:
        if not self.is_dead:
            news, self._news = list(self._news.values()), {}
            self._gangs.took(news)


class SimulatedGangs:
    """What conducts the gangs of a cluster, for its drivers.

    Args:
        world: its time.
        slots: of each node.
        places: nodes that there are at first.
        behave: how the members of an attempt will end: (attempt, members) -> one each.
        on_start: called when the first members of an attempt start.

    Attributes:
        won: whether an attempt's essential members all ended well by themselves, as far as could be known.
        held: parts that have held their places.
        epoch: how often it has begun anew; drivers have to connect again then.
    """

    def __init__(
        self,
        world: World,
        slots: int,
        places: Sequence[SimulatedPlace],
        behave: Callable[[GangRequest], list[Ending]],
        on_start: Callable[[str], None],
    ) -> None:
        self.world = world
        self.gangs: dict[str, ConductedGang] = {}
        self.links: dict[str, SimulatedLink] = {}
        self.clients: list[ConnectedExecutor] = []
        self.epoch = 0
        self.token = 0
        self.is_away = False
        self.won: dict[str, bool] = {}
        self.held: set[str] = set()
        self._rng = Random(f"{world.seed}/gangs")  # noqa: S311 - a schedule that replays, not a secret
        self._each = slots
        self._behave = behave
        self._on_start = on_start
        self._requests: dict[str, GangRequest] = {}
        self._clients: dict[str, ConnectedExecutor] = {}
        self._endings: dict[str, dict[str, Ending]] = {}
        self._parts: dict[str, tuple[ConductedGang, GangPart]] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._told: dict[str, dict[str, MemberStatus]] = {}
        self._stopped: set[str] = set()
        self._turns = 0
        for place in places:
            self.links[place.key] = SimulatedLink(self, place)

    # --- what drivers ask for -----------------------------------------------------------------------

    def submit(self, client: ConnectedExecutor, request: GangRequest) -> None:
        """Queue a gang that is not known."""
        if request.attempt not in self.gangs and not self.is_away:
            self._requests[request.attempt] = request
            message = json.loads(json.dumps(request.message()))
            self.gangs[request.attempt] = ConductedGang(message, "", is_followed=True)
            self._clients[request.attempt] = client
            self._told.pop(request.attempt, None)
            self.grant()

    def launch(self, attempt: str) -> None:
        """Start a gang that is GRANTED."""
        if (gang := self.gangs.get(attempt)) is not None and not self.is_away:
            self._perform(gang, gang.launch({}))

    def stop(self, attempt: str, grace_s: float) -> None:
        """Un-queue a gang or end its processes."""
        if (gang := self.gangs.get(attempt)) is not None and not self.is_away:
            self._stopped.add(attempt)
            self._perform(gang, gang.stop(grace_s, self.world.now))

    def forget(self, attempt: str) -> None:
        """Drop the records of a gang that has ended."""
        gang = self.gangs.get(attempt)
        if gang is not None and gang.phase is Phase.EXITED:
            for part in gang.parts:
                self._parts.pop(part.name, None)
                self._tell(part, {"do": "forget", "attempts": [part.name]})
            del self.gangs[attempt]

    def status(self, attempt: str) -> GangStatus:
        """What is known of an attempt."""
        gang = self.gangs.get(attempt)
        if gang is None:
            return GangStatus(attempt, Phase.UNKNOWN)
        return gang.status()

    def drop_client(self, client: ConnectedExecutor) -> None:
        """A driver is gone: what of its gangs did not start yet never will."""
        if client in self.clients:
            self.clients.remove(client)
        for gang in list(self.gangs.values()):
            if gang.is_followed and self._clients.get(gang.attempt) is client:
                gang.is_followed = False
                if not gang.launched and gang.phase is not Phase.EXITED:
                    self._perform(gang, gang.drop())

    def revive(self) -> None:
        """A driver connects: nothing has to be started for it."""

    # --- what befalls it -------------------------------------------------------------------------------

    def end_node(self, key: str) -> SimulatedLink:
        """A node is dead with all that runs there; nobody knows yet."""
        link = self.links[key]
        link.is_dead = True
        link.host.lose()
        return link

    def lost(self, link: SimulatedLink) -> None:
        """It is known that a node is dead."""
        self.links.pop(link.place.key, None)
        if self.is_away:
            return  # the next driver learns it
        for gang in list(self.gangs.values()):
            gone = [part for part in gang.parts if part.key == link.place.key and not part.over]
            for part in gone:
                part.lose(self.world.now)
            if gone:
                self._after(gang)
        self.grant()

    def kill_supervisor(self, key: str) -> None:
        """``kill -9`` of a node's supervisor; the next one ends what it has left."""
        self.links[key].host.kill_supervisor()
        self.links[key].break_off()

    def leave(self, away_s: float) -> None:
        """The driver is gone for a while: nodes look after their gangs, with what is recorded there."""
        if self.is_away:
            return
        self.world.note(f"the driver is away for {away_s:.0f} s")
        self.is_away = True
        self.clients.clear()
        self._records = {
            part.name: json.loads(json.dumps({**gang.record("", ""), "group": ""}))
            for gang in self.gangs.values()
            for part in gang.parts
        }
        rules: dict[str, UnattendedGangs] = {key: UnattendedGangs() for key in self.links}
        for link in self.links.values():
            link.commands.clear()
            link.break_off()
        back_at = self.world.now + away_s
        self.world.after(_PATIENCE_S, lambda: self._tend(rules, back_at))
        self.world.after(away_s, lambda: self.begin_anew() if self.is_away else None)

    def _tend(self, rules: Mapping[str, UnattendedGangs], back_at: float) -> None:
        """Each node asks the others, and Ray which are dead."""
        if self.world.now >= back_at or not self.is_away:
            return
        for link in self.links.values():
            link.host.drop_client(link)  # what waits for its driver never starts
        reached = {
            key: link
            for key, link in self.links.items()
            if not link.is_dead and link.host.is_up and link.cut_until <= self.world.now
        }
        for key, link in reached.items():
            own = {
                name: record
                for name, record in self._records.items()
                if [name, key] in [[part[0], part[1][0]] for part in record["parts"]]
            }
            seen: dict[str, GangStatus | None] = {name: link.host.status(name) for name in own}
            for (node, _), names in parts_elsewhere(own).items():
                if node not in self.links:
                    seen.update(dict.fromkeys(names))
                elif node in reached:
                    seen.update((name, reached[node].host.status(name)) for name in names)
            for command in rules[key].orders(own, seen, self.world.now, self.world.now):
                if command["do"] == "record":
                    self._records[command["part"]] = json.loads(json.dumps(command["record"]))
                    continue
                self.judge_stop(command)
                link.host.stop(command["attempt"], command["grace_s"])
            self._judge_left(link, {own: gang for (own, _), gang in rules[key].gangs.items()})
        self.world.after(_TEND_S, lambda: self._tend(rules, back_at))

    def begin_anew(self) -> None:
        """The driver was killed; the next one knows what is recorded, and asks the nodes."""
        self.is_away = False
        self.world.note("the driver begins anew")
        self.epoch += 1
        self.clients.clear()
        records = [json.loads(json.dumps(gang.record("", ""))) for gang in self.gangs.values() if gang.parts]
        self.gangs = {each["attempt"]: ConductedGang.from_record({**each, "group": ""}) for each in records}
        self._parts = {part.name: (gang, part) for gang in self.gangs.values() for part in gang.parts}
        for link in self.links.values():
            link.commands.clear()
            link.break_off()
        for link in [each for each in self.links.values() if not each.is_dead]:
            link.attach()
        for gang in list(self.gangs.values()):
            for part in gang.parts:
                if part.key not in self.links and not part.over:
                    part.lose(self.world.now)
            if all(part.dropped for part in gang.parts):
                self._perform(gang, gang.drop())
            else:
                self._after(gang)

    # --- what happens on the nodes ---------------------------------------------------------------------

    def later(self, happen: Callable[[], None], link: SimulatedLink | None = None) -> None:
        """A message gets there some time; over a link that is cut, once it is mended."""
        delay_s = self._rng.choice(_DELAYS_S) * self._rng.random()
        if link is not None:
            delay_s += max(0.0, link.cut_until - self.world.now)
        self.world.after(delay_s, happen)

    def parts_on(self, place: SimulatedPlace) -> list[str]:
        """Parts there that have not ended."""
        return [name for name, (_, part) in self._parts.items() if part.key == place.key and not part.over]

    def took(self, statuses: Iterable[GangStatus]) -> None:
        """News from a supervisor; that it knows nothing of a part may be old news."""
        for status in statuses:
            if status.phase is not Phase.UNKNOWN:
                self._took(status)
            elif status.attempt in self._parts:
                part = self._parts[status.attempt][1]
                self._tell(part, {"do": "check", "attempt": part.name, "turn": part.turn})

    def checked(self, answers: Iterable[tuple[int, GangStatus]]) -> None:
        """What is so for certain, if a part has not been handed over again since."""
        for turn, status in answers:
            if status.attempt in self._parts and self._parts[status.attempt][1].turn == turn:
                self._took(status)

    def attached(self, statuses: Iterable[GangStatus]) -> None:
        """What has become of all that were handed over to a node."""
        for status in statuses:
            self._took(status)

    def _took(self, status: GangStatus) -> None:
        if status.attempt in self._parts and not self.is_away:
            gang, part = self._parts[status.attempt]
            if part.took(status, self.world.now):
                self._after(gang)

    def request_of(self, message: Mapping[str, Any]) -> GangRequest:
        """A part as its supervisor takes it."""
        whole = self._requests[message["attempt"].partition("#")[0]]
        essential = {each["name"]: each["essential"] for each in message["members"]}
        members = [
            replace(each, essential=essential[each.name]) for each in whole.members if each.name in essential
        ]
        return replace(
            whole,
            attempt=message["attempt"],
            members=tuple(members),
            slots=1,
            group=message["group"],
            group_slots=message["group_slots"],
            hold=message["hold"],
        )

    def endings(self, part: GangRequest) -> list[Ending]:
        """How the members of a part will end, which is drawn for all members of its gang at once."""
        attempt = part.attempt.partition("#")[0]
        whole = self._requests[attempt]
        if attempt not in self._endings:
            names = [each.name for each in whole.members]
            self._endings[attempt] = dict(zip(names, self._behave(whole), strict=True))
        return [self._endings[attempt][each.name] for each in part.members]

    # --- placing and performing -------------------------------------------------------------------------

    def used(self) -> int:
        """Slots that are taken."""
        living = [gang for gang in self.gangs.values() if gang.parts and gang.phase is not Phase.EXITED]
        return sum(self._requests[gang.attempt].slots for gang in living)

    def grant(self) -> None:
        """Give gangs that wait a place, in their order."""
        alive = [link for link in self.links.values() if not link.is_dead]
        for gang in list(self.gangs.values()):
            need, used = self._requests[gang.attempt].slots, self.used()
            if gang.parts or gang.phase is Phase.EXITED or not alive:
                continue
            if used and used + need > self._each * len(alive):
                return
            first = self.world.rng.randrange(len(alive))
            places = [alive[(first + n // self._each) % len(alive)].place for n in range(len(gang.essential))]
            where = zip(gang.essential, places, strict=True)
            gang.place({name: (place.key, place.key, place.address) for name, place in where})
            for part in gang.parts:
                self._turns += 1
                part.turn = self._turns
                self._parts[part.name] = (gang, part)
                self._tell(part, {"do": "submit", "gangs": [gang.part_request(part, "")]})

    def _tell(self, part: GangPart, command: Command) -> None:
        if (link := self.links.get(part.key)) is not None:
            link.send(command)

    def _after(self, gang: ConductedGang) -> None:
        step = gang.after(self.world.now)
        self._perform(gang, step)
        if step.outcome is GangOutcome.ENDED:
            self._ended(gang)
            self.grant()
        if step.outcome is not GangOutcome.DROPPED:
            self._judge_told(gang)
            self._announce(gang.attempt)

    def _perform(self, gang: ConductedGang, step: Step) -> None:
        for part, command in step.orders:
            self._tell(part, command)
        if step.press_in_s is not None:
            self.world.after(step.press_in_s, lambda: self._press(gang))
        if step.outcome is GangOutcome.DROPPED and self.gangs.get(gang.attempt) is gang:
            for part in gang.parts:
                self._parts.pop(part.name, None)
            del self.gangs[gang.attempt]
            self._announce(gang.attempt)
            self.grant()

    def _press(self, gang: ConductedGang) -> None:
        if self.gangs.get(gang.attempt) is gang and not self.is_away:  # not one of a driver that was killed
            self._perform(gang, gang.press())

    def _announce(self, attempt: str) -> None:
        for client in self.clients:
            client.tell(self.status(attempt))

    # --- invariants -------------------------------------------------------------------------------------

    def living(self, attempt: str) -> list[str]:
        """Members that truly live."""
        return [
            member.name
            for link in self.links.values()
            for name, gang in link.host.gangs.items()
            if name.partition("#")[0] == attempt and gang.phase is Phase.RUNNING
            for member in gang.members
            if member.ended_at is None
        ]

    def begins(self, part: str) -> None:
        """Members of a part start: all parts hold their places, or have held them."""
        gang, _ = self._parts.get(part, (None, None))
        if gang is None:
            return  # launched, and given up since
        for other in [each for each in gang.parts if each.name != part]:
            link = self.links.get(other.key)
            if link is None or link.is_dead or link.host.was_lost or other.over or gang.kill_at is not None:
                continue
            if other.name not in self.held:
                self.world.fail(f"{part} starts before {other.name} holds its place")
        if not any(name for name in self.living(gang.attempt)):
            self._on_start(gang.attempt)

    def judge_stop(self, command: Command) -> None:
        """Those that serve the others are asked when the others have ended, or their grace is over."""
        gang, part = self._parts.get(command["attempt"], (None, None))
        if gang is None or part is None or part.leads or gang.kill_at is None:
            return
        led = [name for name in self.living(gang.attempt) if gang.essential[name]]
        if led and self.world.now < gang.kill_at:
            self.world.fail(f"{part.name} is asked to end while {', '.join(led)} may need it")

    def _judge_left(self, link: SimulatedLink, gangs: Mapping[str, ConductedGang]) -> None:
        """Without a driver, too, nothing waits for a peer that is known to be dead."""
        for own, gang in gangs.items():
            part = link.host.gangs.get(own)
            late = gang.kill_at is not None and self.world.now > gang.kill_at + 2 * _TEND_S
            if late and part is not None and part.phase is Phase.RUNNING and not part.orphaned:
                self.world.fail(f"{own} waits for what is dead")

    def _judge_told(self, gang: ConductedGang) -> None:
        """How a member ended, once the driver has heard it, never changes."""
        rows = gang.members()
        told = self._told.setdefault(gang.attempt, {})
        for part in gang.parts:
            for name in part.members if part.over else ():
                before, row = told.setdefault(name, rows[name]), rows[name]
                if (before.exit_code, before.signal) != (row.exit_code, row.signal):
                    self.world.fail(f"{gang.attempt}: {name} has ended as {before}, and later as {row}")
        if not gang.launched or gang.alone or gang.phase is Phase.EXITED:
            return
        bad = [name for name, row in rows.items() if row.ended_at is not None and row.exit_code != 0]
        if gang.kill_at is None and any(
            gang.essential[name] and name not in gang.dispensable for name in bad
        ):
            self.world.fail(f"{gang.attempt}: nobody is asked to end though {', '.join(bad)} failed")
        served = all(row.ended_at is not None for name, row in rows.items() if gang.essential[name])
        missed = [name for name in bad if name not in gang.dispensable or not rows[name].lost]
        if gang.kill_at is not None and not (served or missed or gang.attempt in self._stopped):
            self.world.fail(f"{gang.attempt} is ended though all go on but {', '.join(bad)}")

    def _ended(self, gang: ConductedGang) -> None:
        rows = gang.members()
        essential = [row for name, row in rows.items() if gang.essential[name]]
        self.won.setdefault(gang.attempt, all(row.exit_code == 0 and not row.stopped for row in essential))
        if living := self.living(gang.attempt):
            self.world.fail(f"{gang.attempt} has ended, but {', '.join(living)} live")
