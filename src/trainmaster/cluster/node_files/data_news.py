"""`DataNews`: what a node says while it gets data, and what of that is told to the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

#: What takes longer is reported, and then again every so often.
TELL_S: Final = 20.0
TELL_AGAIN_S: Final = 60.0
_MB: Final = 1e6
_GB: Final = 1e9


class DataNews:
    """Hears `data_orders`.

    Args:
        tell: is told now and then how far it is.
        remark: is told at once what it remarks.
        clock: gives seconds.
    """

    def __init__(
        self, tell: Callable[[str], None], remark: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._tell = tell
        self._remark = remark
        self._clock = clock
        self._begun_s = clock()
        self._tell_at_s = self._begun_s + TELL_S

    def hear(self, said: Mapping[str, Any]) -> None:
        """Take what it says before it has ended."""
        if "note" in said:
            self._remark(str(said["note"]))
        elif "at" in said:
            self._at(*map(int, said["at"]))

    def _at(self, done_bytes: int, total_bytes: int) -> None:
        now_s = self._clock()
        if now_s < self._tell_at_s:
            return
        self._tell_at_s = now_s + TELL_AGAIN_S
        unit, name = (_GB, "GB") if total_bytes >= _GB else (_MB, "MB")
        far = f", {done_bytes / unit:.1f} of {total_bytes / unit:.1f} {name}" if total_bytes else ""
        self._tell(f"fetching for {now_s - self._begun_s:.0f} s{far}")
