"""What every launcher must keep: inherit `LauncherContract` and give it a ``launcher`` fixture."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest

from trainmaster.launchers import Gang, Launcher, Member

_SHAPES = [
    pytest.param(world, per_node, spread, id=f"{world}x{per_node}-{'hosts' if spread else 'one-machine'}")
    for world in range(1, 9)
    for per_node in range(1, 5)
    for spread in (False, True)
]
_OUTSIDE = "what-the-launcher-was-not-given"


class LauncherContract:
    """Inherited by the tests of each launcher, ours and plug-ins'.

    Attributes:
        rank_variable: the variable that holds a member's rank, if there is one.
        world_size_variable: the variable that holds the number of members, if there is one.
        differs: variables that may differ between the members of a gang; all others must not.
    """

    rank_variable: ClassVar[str | None] = None
    world_size_variable: ClassVar[str | None] = None
    differs: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def launcher(self) -> Launcher:
        """The launcher under test."""
        raise NotImplementedError("give your tests a `launcher` fixture")

    def roles(self, world_size: int) -> list[str]:
        """The members' roles in rank order; override it where not all are workers."""
        return ["worker"] * world_size

    def gang(self, launcher: Launcher, world_size: int, per_node: int, spread: bool) -> Gang:
        """A gang on one machine, or with ``per_node`` members on each of several hosts."""
        members: list[Member] = []
        for rank, role in enumerate(self.roles(world_size)):
            index = sum(member.role == role for member in members)
            host = f"10.77.0.{1 + rank // per_node}" if spread else "127.0.0.1"
            first = 41000 + 100 * rank  # no framework's default port
            ports = tuple(range(first, first + launcher.ports_per_member(role)))
            members.append(Member(role, index, host, ports))
        return Gang(tuple(members), per_node)

    def test_it_has_a_name(self, launcher: Launcher) -> None:
        """Recipes use it."""
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", launcher.name)

    def test_rank_0_is_essential(self, launcher: Launcher) -> None:
        """A gang without a member that must succeed would never be done."""
        gang = self.gang(launcher, 4, 1, spread=False)
        assert launcher.is_essential(gang, gang.chief)

    @pytest.mark.parametrize(("world_size", "per_node", "spread"), _SHAPES)
    def test_what_is_dispensable_is_not_essential(
        self, launcher: Launcher, world_size: int, per_node: int, spread: bool
    ) -> None:
        """A gang cannot succeed without its essential members."""
        gang = self.gang(launcher, world_size, per_node, spread)
        for member in gang.members:
            assert not (launcher.is_dispensable(gang, member) and launcher.is_essential(gang, member))

    @pytest.mark.parametrize(("world_size", "per_node", "spread"), _SHAPES)
    def test_environment(
        self,
        launcher: Launcher,
        world_size: int,
        per_node: int,
        spread: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Texts only; the same for all but for the rank; only ports that are held; nothing from outside."""
        gang = self.gang(launcher, world_size, per_node, spread)
        environments = [launcher.environment(gang, member) for member in gang.members]
        defaults = [launcher.defaults(gang, member) for member in gang.members]

        for environment, default in zip(environments, defaults, strict=True):
            for key, value in {**environment, **default}.items():
                assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key), key
                assert isinstance(value, str)
                assert "\0" not in value
            assert not environment.keys() & default.keys(), "a default may be replaced by the user"
            assert self._ports_in(environment) <= {port for m in gang.members for port in m.ports}
        assert len({frozenset(environment) for environment in environments}) == 1, "all have the same names"
        for key in environments[0].keys() - self.differs:
            assert len({environment[key] for environment in environments}) == 1, f"{key} differs"
        if self.rank_variable:
            ranks = [environment[self.rank_variable] for environment in environments]
            assert ranks == [str(rank) for rank in range(world_size)]
        if self.world_size_variable:
            assert {environment[self.world_size_variable] for environment in environments} == {
                str(world_size)
            }

        # Pure: another process, with other variables and another home, finds the same.
        for key in {*environments[0], *defaults[0], "HOME", "HOSTNAME", "AWS_SECRET_ACCESS_KEY"}:
            monkeypatch.setenv(key, _OUTSIDE)
        before = dict(os.environ)
        again = self.gang(launcher, world_size, per_node, spread)
        assert [launcher.environment(again, member) for member in again.members] == environments
        assert [launcher.defaults(again, member) for member in again.members] == defaults
        assert dict(os.environ) == before

    @pytest.mark.parametrize("script", ["true", "echo 'it''s' \"$HOME\" # fine\ncat <<X\n$(date)\nX"])
    def test_script(self, launcher: Launcher, script: str) -> None:
        """Bash can read what the members run, and it does not depend on ports, which are not held yet."""
        for world_size, spread in ((1, False), (4, False), (4, True)):
            gang = self.gang(launcher, world_size, 2, spread)
            bare = Gang(tuple(replace(member, ports=()) for member in gang.members), gang.per_node)
            for member, without in zip(gang.members, bare.members, strict=True):
                found = launcher.script(gang, member, script)
                assert found == launcher.script(bare, without, script)
                checked = subprocess.run(
                    ["bash", "-n", "-c", found], capture_output=True, text=True, check=False
                )
                assert not checked.stderr, f"{checked.stderr}\n{found}"

    @pytest.mark.parametrize("log", ["", "\n", "epoch 1 loss 0.5\n", "\ufffd\x00\x1b[31mred\r\n"])
    def test_explain_is_silent_about_what_it_does_not_know(self, launcher: Launcher, log: str) -> None:
        """A wrong explanation is worse than none."""
        assert launcher.explain(log) == ""

    @staticmethod
    def _ports_in(environment: Mapping[str, str]) -> set[int]:
        """Every number that can be a port and stands where a port would."""
        found: set[int] = set()
        for key, value in environment.items():
            if "PORT" in key and value.isdigit():
                found.add(int(value))
            found.update(int(port) for port in re.findall(r"[A-Za-z0-9.\]]:(\d{2,5})\b", value))
        return found
