"""`KeyRotation`: another key for what is sealed, while servers and drivers go on.

Nothing but sealed values rests on the key: tokens, sessions, invites and the cookies of apps are random, and
kept as their SHA-256; messages to webhooks are signed with secrets of their own, which are sealed.

The key file is written first and then each value, so what is killed in between has two keys that both open,
and is done once more. Whoever seals reads the file anew; what was sealed with the key before a moment ago,
and is written after all else was sealed anew, is found by `drop`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from trainmaster.dataclass import dataclass
from trainmaster.db import Database, sealed
from trainmaster.service.driving.encryption import (
    HEAD_BYTES,
    KEY_FILE_VARIABLE,
    SealedError,
    SealingKey,
    key_of_head,
    name_of,
    new_key,
)
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.locking import locked

#: Of each table the first word of what its values are sealed for; the others are its row's key.
KINDS: Final = {"team_secret": "secret", "webhook": "webhook", "workflow": "workflow", "run_private": "run"}
#: A key is dropped so long after the file was changed: what was being sealed with it is written by then.
REST_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Resealed:
    """What a rotation has done.

    Attributes:
        key: name of the key that seals now.
        is_new: it did not do so before.
        values: so many were sealed anew.
        lost: what no key of the file opens.
    """

    key: str
    is_new: bool
    values: int
    lost: tuple[str, ...]


class KeyRotation:
    """The keys of a home.

    Args:
        database: whose values are sealed.
        root: of the home.
        environ: the variables, which may name the key file.
        clock: Unix seconds, as files have them.

    Raises:
        UsageError: (every method) the key file cannot be used.
        StoreError: (every method) the database cannot be used.
    """

    def __init__(
        self,
        database: Database,
        root: Path,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._root, self._environ, self._clock = database, root, environ, clock

    def listed(self) -> dict[str, Any]:
        """``file`` and ``keys``: which one seals, how many values each has sealed, whether it is there."""
        key, counts = self._key(), self._counts()
        known = [name_of(each) for each in key.all]
        keys = [
            {"key": name, "seals": name == key.name, "is_known": name in known, "values": counts[name]}
            for name in [*known, *sorted(counts.keys() - known)]
        ]
        return {"file": str(key.file), "keys": keys}

    def add(self) -> str:
        """Make a key that only opens, for other servers to know it before it seals anything; its name."""
        with self._locked():
            key, more = self._key(), new_key()
            replace(key, others=(*key.others, more)).write()
            return name_of(more)

    def rotate(self, name: str = "") -> Resealed:
        """Seal with another key from now on, and all that is sealed already.

        Args:
            name: of a key that was added; empty for a new one, or to go on with what was cut short.

        Raises:
            UsageError: other servers may not know a new key.
            NotFoundError: there is no key of that name.
        """
        with self._locked():
            before = self._key()
            key = self._wanted(before, name)
            if key.all != before.all:
                key.write()
            done, lost = 0, []
            for column, row in sealed.with_other_heads(self._database, key.head):
                place = _place(column, row)
                try:
                    plain = key.open(bytes(row[column.name]), place)
                except SealedError:
                    lost.append(place)
                    continue
                done += sealed.put(self._database, column, row, key.seal(plain, place))
            return Resealed(key.name, key.key != before.key, done, tuple(lost))

    def drop(self, name: str) -> None:
        """Forget a key that nothing is sealed with.

        Raises:
            UsageError: it is still needed, or may be.
            NotFoundError: there is no key of that name.
        """
        with self._locked():
            key = self._key()
            gone = self._find(key, name)
            if gone == key.key:
                raise UsageError(
                    f"{key.name} is the key that seals",
                    "`trainmaster server key rotate` takes another one first.",
                )
            if values := self._counts()[name]:
                raise UsageError(
                    f"{values} values are sealed with {name}",
                    "`trainmaster server key rotate` seals them anew first.",
                )
            if away := sealed.runs_away(self._database):
                raise UsageError(
                    f"what machines publish that drive {', '.join(away[:5])} may be sealed with {name}",
                    "Wait until these runs are over.",
                )
            rests_s = key.file.stat().st_mtime + REST_S - self._clock()
            if rests_s > 0:
                raise UsageError(
                    f"the keys were changed a moment ago: what {name} has sealed may still be on its way",
                    f"Do this in {rests_s / 60:.0f} minutes or later.",
                )
            replace(key, others=tuple(each for each in key.others if each != gone)).write()

    # --- private ------------------------------------------------------------------------------------

    def _key(self) -> SealingKey:
        return SealingKey.of(self._root, self._environ)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time on this machine."""
        file = self._key().file
        try:
            with locked(file):
                yield
        except PermissionError as error:
            raise UsageError(
                f"{file.parent} cannot be written",
                f"{KEY_FILE_VARIABLE} names a file there; do this as its owner.",
            ) from error

    def _wanted(self, before: SealingKey, name: str) -> SealingKey:
        """The keys as they are to be."""
        if name:
            first = self._find(before, name)
        elif any(self._counts()[name_of(each)] for each in before.others):
            return before  # that was cut short
        elif self._database.is_shared:
            raise UsageError(
                "other servers of this database would not know a new key",
                f"`trainmaster server key add` makes one; copy {before.file} to each server, then name it.",
            )
        else:
            first = new_key()
        return SealingKey(first, before.file, tuple(each for each in before.all if each != first))

    def _find(self, key: SealingKey, name: str) -> bytes:
        for each in key.all:
            if name_of(each) == name:
                return each
        known = ", ".join(name_of(each) for each in key.all)
        raise NotFoundError(f"{key.file} has no key {name!r}", f"It has {known}.")

    def _counts(self) -> Counter[str]:
        """How many values each key has sealed, by name."""
        found = sealed.heads(self._database, HEAD_BYTES)
        return Counter({key_of_head(head): values for head, values in found.items()})


def _place(column: sa.Column[Any], row: RowMapping) -> str:
    """What a value was sealed for."""
    table = column.table
    return "/".join((KINDS[table.name], *(row[each.name] for each in table.primary_key.columns)))
