"""`DataNews`: what a node says while it gets data, and what of that is told to the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainmaster.objects.errors import StoreTrouble, known_trouble

#: What takes longer is told of, and then every so often.
TELL_S: Final = 20.0
TELL_AGAIN_S: Final = 60.0
_MB: Final = 1e6
_GB: Final = 1e9
_WORDS_BYTES: Final = 1 << 16


class DataNews:
    """Hears `node_data_program`.

    Args:
        tell: is told now and then how far it is.
        remark: is told at once what it remarks.
        clock: gives seconds.

    Attributes:
        last: its last word: ``done``, ``refused``, ``busy``, ``wrong`` or ``failed``, and what belongs to it.
        trouble: of what kind it is that went wrong; programs of earlier versions do not say.
        url: of the store or object where it did, if that is known.
    """

    def __init__(
        self, tell: Callable[[str], None], remark: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._tell = tell
        self._remark = remark
        self._clock = clock
        self._begun_s = clock()
        self._tell_at_s = self._begun_s + TELL_S
        self._rest = b""
        self.last = ""
        self.trouble = StoreTrouble.OTHER
        self.url = ""

    def hear(self, data: bytes) -> None:
        """Take a piece of its standard output; before it, a login's start-up files may have spoken."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_WORDS_BYTES:]
        for line in lines:
            if line.startswith(b"@@at "):
                self._at(line.decode(errors="replace").split())
            elif line.startswith(b"@@note "):
                self._remark(line.decode(errors="replace").partition(" ")[2].strip())
            elif line.startswith(b"@@trouble "):
                kind, _, url = line.decode(errors="replace").partition(" ")[2].partition(" ")
                self.trouble, self.url = known_trouble(kind.strip()), url.strip()
            elif line.startswith(b"@@"):
                self.last = line[2:].decode(errors="replace").strip()

    def _at(self, words: list[str]) -> None:
        now_s = self._clock()
        if now_s < self._tell_at_s:
            return
        self._tell_at_s = now_s + TELL_AGAIN_S
        done_bytes, total_bytes = (int(word) for word in words[1:3])
        unit, name = (_GB, "GB") if total_bytes >= _GB else (_MB, "MB")
        far = f", {done_bytes / unit:.1f} of {total_bytes / unit:.1f} {name}" if total_bytes else ""
        self._tell(f"fetching for {now_s - self._begun_s:.0f} s{far}")
