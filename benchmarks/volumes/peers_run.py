"""`Run`: the processes of all methods, what they found, and which were lost on the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from peers_agent import Agent
from peers_place import Place

SLOW_S = 5.0
BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.0f} s  {words}", file=sys.stderr, flush=True)


class Run:
    """The processes of the methods, and what they found.

    Attributes:
        found: section -> row -> a value for each repetition.
        missing: method -> why it is not there.
        about: method -> how it shuffles and is tuned.
    """

    def __init__(self, chosen: Iterable[str] | None) -> None:
        self.chosen = set(chosen) if chosen else None
        self.agents: dict[str, Agent] = {}
        self.found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.missing: dict[str, str] = {}
        self.about: dict[str, dict[str, Any]] = {}

    def start(self, names: Iterable[str], place: Place) -> None:
        """Starts processes where there are none yet, all at once, and tells them where the store is."""
        names = [name for name in names if name not in self.missing and name in (self.chosen or {name})]
        for name in names:
            try:
                if name not in self.agents:
                    self.agents[name] = Agent(name, place)
            except RuntimeError as error:
                self._lose(name, error)
        for name in names:
            about = self.ask("", name, "place", **asdict(place))
            if about:
                self.about.setdefault(name, about)

    def ask(self, section: str, name: str, what: str, **arguments: Any) -> Any:
        """Has a method do something; one that fails is left out from then on, and the reason kept."""
        if name not in self.agents:
            return None
        began = time.monotonic()
        try:
            found = self.agents[name].ask(what, **arguments)
        except RuntimeError as error:
            self._lose(name, error)
            return None
        took = time.monotonic() - began
        if isinstance(found, dict) and "cpu_s" in found:
            rate, cpu = found["bytes"] / found["seconds"] / 1e6, found["cpu_s"] / found["bytes"] * 1e9
            say(f"  {what} {name}: {rate:.0f} MB/s, {cpu:.2f} CPU s per GB, {took:.1f} s in all")
        elif took > SLOW_S:
            say(f"  {what} {name}: {took:.1f} s")
        if section:
            self.found.setdefault(section, {}).setdefault(name, []).append(found)
        return found

    def _lose(self, name: str, error: Exception) -> None:
        say(f"{name}: {error}")
        self.missing[name] = str(error)
        if name in self.agents:
            self.agents.pop(name).close()

    def end(self, names: Iterable[str] = ()) -> None:
        """Ends the processes of these methods, or of all."""
        ending = [self.agents.pop(name) for name in tuple(names or self.agents) if name in self.agents]
        for agent in ending:
            agent.hang_up()
        for agent in ending:
            agent.close()
