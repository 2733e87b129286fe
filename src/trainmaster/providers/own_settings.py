"""`SettingsKind`: a file with which a user says what a provider cannot know, read as recipes are."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from trainmaster.dataclass import dataclass
from trainmaster.providers.dead_man_switch import USER
from trainmaster.spec.errors import RecipeError, UsageError, fails_as
from trainmaster.spec.node import Wording, YamlNode, compose, read_text
from trainmaster.spec.reading import Noun, Problems, Reader, ReportedMistake, pattern, read_noun
from trainmaster.spec.reading import Path as KeyPath

N = TypeVar("N", bound=Noun)
MOST_PORT: Final = 65535


class NotSetUpError(UsageError):
    """Nothing here says how to use a provider, or with which account."""


@dataclass(frozen=True, slots=True)
class SettingsKind(Generic[N]):
    """The settings of a provider: ``PROVIDER.yaml`` below ``TRAINMASTER_HOME``.

    Attributes:
        provider: its name.
        place: as messages name it. keys: that are needed, for messages.
        example: of a whole file.
        noun: that it is read as; its ``file`` says where it is from.
    """

    provider: str
    place: str
    keys: str
    example: str
    noun: type[N]

    def file(self, root: Path, environ: Mapping[str, str]) -> Path:
        """Where the settings of a home are: a variable may name another file."""
        named = environ.get(f"TRAINMASTER_{self.provider.upper()}")
        return Path(named).expanduser() if named else root / f"{self.provider}.yaml"

    def read(self, root: Path, environ: Mapping[str, str]) -> N:
        """The settings of a home.

        Raises:
            RecipeError: with all mistakes that were found.
            NotSetUpError: there are none.
        """
        return self.read_file(self.file(root, environ), environ.get(shown_variable(self.provider), ""))

    def read_file(self, file: Path, shown: str = "") -> N:
        """See `read`.

        Args:
            file: that is read.
            shown: where its user has it, if that is another place; messages name this one.
        """
        shown, problems = shown or os.fspath(file), Problems()
        what = f"settings of {self.place}"
        wording = Wording(what, what, f"a mapping with the keys {self.keys}")
        root = compose(self._text(file, shown), shown, wording)
        try:
            found = read_noun(self.noun, root, (), problems)
        except ReportedMistake:
            found = None
        if problems.mistakes or found is None:
            raise RecipeError(shown, problems.in_order())
        return found.model_copy(update={"file": Path(shown).absolute()})

    def _text(self, file: Path, shown: str) -> str:
        with fails_as(f"{shown} cannot be read", f"Such as:\n{self.example}"):
            try:
                return read_text(file, shown, "settings", "write them without what they do not need")
            except FileNotFoundError:
                raise NotSetUpError(
                    f"provider {self.provider}: there are no settings {shown}",
                    f"Write them, for instance:\n{self.example}",
                ) from None


def shown_variable(provider: str) -> str:
    """Names the variable with the path of a provider's settings in the home that has sent them."""
    return f"TRAINMASTER_{provider.upper()}_SHOWN"


def login_place(right: str) -> Reader[str]:
    """Reads where one logs in, as `jump_target` takes it: ``user@host:port``; ``right``: what to write."""
    read_text = pattern(r"([^\s@]+@)?[A-Za-z0-9_][A-Za-z0-9._-]*(:[0-9]{1,5})?", right)

    def read(node: YamlNode, path: KeyPath, problems: Problems) -> str:
        found = read_text(node, path, problems)
        if not 0 < int(found.rpartition("@")[2].partition(":")[2] or 22) <= MOST_PORT:
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        return found

    return read


#: Reads whom to log in as on a rented machine, which its dead-man switch knows, too.
user_name: Final = pattern(USER, "write the name to log in as")


def check_ssh_from(values: Mapping[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
    """Refuse an ``ssh_from`` that is no address block."""
    if block := values.get("ssh_from"):
        try:
            ipaddress.IPv4Network(block)
        except ValueError:
            problems.add(node, path, f"ssh_from: {block!r} is no IPv4 block such as 203.0.113.7/32")
