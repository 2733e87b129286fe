"""`RoleSources`: where the roles that a recipe names lie here, brought here if others have them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trainmaster.control.checks.role_files import require_role, required_names
from trainmaster.spec.errors import UsageError
from trainmaster.spec.locking import locked
from trainmaster.spec.plain_json import parsed_yaml
from trainmaster.spec.roles import Roles, is_requirements

_TROUBLE: Final = re.compile(r"(?:\[(?:WARNING|ERROR)\]:|ERROR!|fatal:) *(.+)")
_MOST_WORDS: Final = 600


class RoleSources:
    """What an experiment's ``roles`` name.

    Args:
        roles: of the experiment.
        code: of the run, in which they lie.
        cache: where those of others are kept.
        fetch: runs a command of ansible-galaxy and says what it said, None if all is well.
    """

    def __init__(
        self, roles: Roles, code: Path, cache: Path, fetch: Callable[[Sequence[str]], str | None]
    ) -> None:
        self._roles = roles
        self._code = code
        self._cache = cache
        self._fetch = fetch

    def directories(self) -> dict[str, dict[str, Path]]:
        """Directories of roles, by group and by how they are named.

        Raises:
            UsageError: there is none, or it cannot be had.
        """
        found: dict[str, dict[str, Path]] = {}
        for group, entries in self._roles.groups.items():
            its = found.setdefault(group, {})
            for entry in entries:
                if is_requirements(entry):
                    its |= self._required(entry)
                else:
                    its[entry] = require_role(self._code / entry, entry)
        return found

    @property
    def settings(self) -> dict[str, str]:
        """For Ansible: where collections of requirements lie, before those of the user."""
        own = [
            str(self._place_of(entry) / "collections")
            for entry in self._roles.entries
            if is_requirements(entry)
        ]
        if not own:
            return {}
        usual = os.environ.get("ANSIBLE_COLLECTIONS_PATH")
        rest = usual or f"{Path('~/.ansible/collections').expanduser()}:/usr/share/ansible/collections"
        return {"ANSIBLE_COLLECTIONS_PATH": ":".join([*own, rest])}

    def _required(self, entry: str) -> dict[str, Path]:
        """Have what a requirements.yml names brought here, once per content of the file."""
        file, place = self._code / entry, self._place_of(entry)
        names, has_collections = required_names(_document(file, entry), entry)
        with locked(place):
            if not (place / "ready").exists():
                shutil.rmtree(place, ignore_errors=True)
                for kind, is_wanted in (("role", bool(names)), ("collection", has_collections)):
                    if is_wanted:
                        order = ["ansible-galaxy", kind, "install", "-r", str(file)]
                        self._bring([*order, "-p", str(place / f"{kind}s")], entry)
                place.mkdir(parents=True, exist_ok=True)
                (place / "ready").touch()
        shown = {name: f"{entry}: {name}" for name in names}
        return {shown[name]: require_role(place / "roles" / name, shown[name]) for name in names}

    def _bring(self, order: Sequence[str], entry: str) -> None:
        if (said := self._fetch(order)) is not None:
            raise UsageError(
                f"roles: what {entry} names cannot be had: {why(said)}",
                "Can this machine reach where it lies? Roles can also lie in the code.",
            )

    def _place_of(self, entry: str) -> Path:
        try:
            digest = hashlib.sha256((self._code / entry).read_bytes()).hexdigest()[:20]
        except OSError:
            raise UsageError(
                f"roles: there is no file {entry} in the code", "A path begins at the code's top."
            ) from None
        return self._cache / digest


def why(said: str) -> str:
    r"""What of ansible-galaxy's words says why it failed.

    >>> why("[WARNING]: - base was NOT installed: no meta/main.yml\n[ERROR]: - you can use --ignore-errors")
    '- base was NOT installed: no meta/main.yml'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip() and "--ignore-errors" not in line]
    marked = [match[1] for line in lines if (match := _TROUBLE.match(line))]
    return " / ".join((marked or lines)[-2:])[:_MOST_WORDS]


def _document(file: Path, entry: str) -> object:
    try:
        return parsed_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"roles: {entry} cannot be read: {said}") from None
