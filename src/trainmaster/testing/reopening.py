"""`ReopeningExecutor`: an executor of a cluster as a run has it, whose connection may be lost at any time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trainmaster.executors.base import Capacity, GangRequest, GangStatus
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.spec.errors import ExecutorError, LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2


class ReopeningExecutor:
    """Does what `ClusterConnection` does: one that raises is closed, another is opened and asked what is new.

    Args:
        arguments, options: of `NodesExecutor`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of another
        self._make: Callable[[], NodesExecutor] = partial(NodesExecutor, *arguments, **options)
        self._executor = self._make()
        self._hello: Callable[[NodesExecutor], None] = lambda _: None
        self._sent: dict[str, None] = {}
        self._news: list[GangStatus] = []

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """See `Executor.open`."""
        self._hello = lambda executor: executor.open(run, capacity, env, token)
        self._hello(self._executor)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """See `Executor.submit`."""
        self._sent.update(dict.fromkeys(gang.attempt for gang in gangs))
        self._call("submit", gangs)

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """See `Executor.changes`."""
        found = self._call("changes", 0.0 if self._news else timeout_s)
        news, self._news = self._news, []
        return [*news, *found]

    def forget(self, attempts: Sequence[str]) -> None:
        """See `Executor.forget`."""
        for attempt in attempts:
            self._sent.pop(attempt, None)
        self._call("forget", attempts)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        found = getattr(self._executor, name)
        return partial(self._call, name) if callable(found) else found

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return getattr(self._executor, name)(*arguments, **options)
            except LeaseLostError:
                raise
            except ExecutorError:
                if time.monotonic() > deadline or name == "close":
                    raise
                self._reopen(deadline)

    def _reopen(self, deadline: float) -> None:
        self._executor.close()
        while True:
            self._executor = self._make()
            try:
                self._hello(self._executor)
                self._news += self._executor.observe(list(self._sent))
                return
            except LeaseLostError:
                raise
            except ExecutorError:
                self._executor.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
