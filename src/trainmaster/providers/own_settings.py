"""`read_own_settings`: a file with which a user says what a provider cannot know, read as recipes are."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.node import MAX_RECIPE_BYTES, Wording, YamlNode, compose
from trainmaster.spec.reading import Noun, Problems, ReportedMistake, read_noun
from trainmaster.spec.reading import Path as KeyPath

N = TypeVar("N", bound=Noun)


@dataclass(frozen=True, slots=True)
class SettingsKind:
    """The settings of a provider.

    Attributes:
        provider: its name.
        name: of the file below ``TRAINMASTER_HOME``.
        variable: names another file than the home's.
        wording: of messages.
        example: of a whole file.
    """

    provider: str
    name: str
    variable: str
    wording: Wording
    example: str

    def file(self, root: Path, environ: Mapping[str, str]) -> Path:
        """Where the settings of a home are."""
        named = environ.get(self.variable)
        return Path(named).expanduser() if named else root / self.name


def read_own_settings(noun: type[N], kind: SettingsKind, file: Path) -> N:
    """Read and check settings.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: there is no such file.
    """
    shown = os.fspath(file)
    problems = Problems()
    root = compose(_read_text(kind, file, shown), shown, kind.wording)
    try:
        found = read_noun(noun, root, (), problems)
    except ReportedMistake:
        found = None
    if problems.mistakes or found is None:
        raise RecipeError(shown, problems.in_order())
    return found


def check_ssh_from(values: Mapping[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
    """Refuse an ``ssh_from`` that is no address block."""
    if block := values.get("ssh_from"):
        try:
            ipaddress.IPv4Network(block)
        except ValueError:
            problems.add(node, path, f"ssh_from: {block!r} is no IPv4 block such as 203.0.113.7/32")


def _read_text(kind: SettingsKind, file: Path, shown: str) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_RECIPE_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(
            f"provider {kind.provider}: there are no settings {shown}",
            f"Write them, for instance:\n{kind.example}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"{shown} cannot be read: {why}", f"Such as:\n{kind.example}") from None
