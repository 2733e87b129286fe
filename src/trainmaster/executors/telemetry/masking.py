"""`SecretMask`: takes the values of secrets out of what a member prints, before it is on a disk."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: What is shown in place of a value.
MASK = b"***"
#: Shorter values are in any text by chance.
LEAST_BYTES = 6


class SecretMask:
    """A filter of a stream of bytes; what may be the beginning of a value waits for what comes next.

    Args:
        values: of the secrets. Of one with several lines each line is taken out by itself.

    >>> mask = SecretMask(["hunter22"])
    >>> mask.feed(b"it is hunt"), mask.feed(b"er22, or hunt"), mask.rest()
    (b'it is ', b'***, or ', b'hunt')
    """

    def __init__(self, values: Iterable[str]) -> None:
        lines = {
            line.strip() for value in values for line in value.encode(errors="surrogateescape").split(b"\n")
        }
        self._values = sorted((line for line in lines if len(line) >= LEAST_BYTES), key=len, reverse=True)
        self._waiting = b""

    def __bool__(self) -> bool:
        """There is something to look for."""
        return bool(self._values)

    def feed(self, data: bytes) -> bytes:
        """What may be written, now that more has come."""
        data = self._waiting + data
        end = min((_begun(data, value) for value in self._values), default=len(data))
        places = {value: data.find(value) for value in self._values}
        parts, start = [], 0
        # The first one, and of those that begin at the same place the longest.
        while found := [(at, -len(value)) for value, at in places.items() if 0 <= at < end]:
            at, size = min(found)
            parts += [data[start:at], MASK]
            start = at - size
            for value, known in places.items():
                if 0 <= known < start:
                    places[value] = data.find(value, start)
        end = max(start, end)
        self._waiting = data[end:]
        return b"".join((*parts, data[start:end]))

    def text(self, said: str) -> str:
        """All of what a program has said."""
        return (self.feed(said.encode(errors="replace")) + self.rest()).decode(errors="replace")

    def rest(self) -> bytes:
        """What still waits, at the end of the stream; it is the beginning of a value at most."""
        waiting, self._waiting = self._waiting, b""
        for value in self._values:
            waiting = waiting.replace(value, MASK)
        return waiting


def _begun(data: bytes, value: bytes) -> int:
    """Where the end of the data begins that is the beginning of a value, and not all of it."""
    at = data.find(value[:1], max(0, len(data) - len(value) + 1))
    while at >= 0 and not value.startswith(data[at:]):
        at = data.find(value[:1], at + 1)
    return len(data) if at < 0 else at
