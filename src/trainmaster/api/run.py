"""`Run`: one execution of a recipe, in the caller's hands."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trainmaster.api.protocol import ClientProtocol
from trainmaster.api.results import Accepted, Event, LogQuery, Model, RunQuote, RunStatus
from trainmaster.spec.errors import RunError, RunFailedError, UndrivenError, UsageError, WaitTimeoutError
from trainmaster.spec.states import EndReason, State

_POLL_S: Final = 0.2
#: So long after its end was asked for a run that still does not stop is asked again.
_AGAIN_S: Final = 5.0


class Run:
    """One execution of a recipe. It goes on by itself, also without this object.

    Made by `trainmaster.run`, `Client.run` and `Client.runs`.

    Attributes:
        id: such as ``digits-7f3a09c2d1``.
        notes: what the user may want to know of its start.

    Raises:
        NotFoundError: (all but ``id`` and ``notes``) there is no such run any more.
        StoreError: (all but ``id`` and ``notes``) the database cannot be used.
    """

    def __init__(self, client: ClientProtocol, run: str, notes: Sequence[str] = ()) -> None:
        self.id = run
        self.notes = tuple(notes)
        self._client = client

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def state(self) -> State:
        """WAITING, RUNNING, STOPPING or DONE, now."""
        return State(self._client.brief(self.id)["state"])

    @property
    def reason(self) -> EndReason | None:
        """Why it ended: SUCCEEDED, USER_ERROR, CANCELLED, ...; None before."""
        reason = self._client.brief(self.id)["reason"]
        return None if reason is None else EndReason(reason)

    @property
    def succeeded(self) -> bool:
        """Whether it has ended, and well."""
        return self.reason is EndReason.SUCCEEDED

    @property
    def labels(self) -> dict[str, str]:
        """What it is found by."""
        return dict(self._client.brief(self.id).get("labels", {}))

    @property
    def note(self) -> str:
        """What somebody has written on it; empty for nothing."""
        return str(self._client.brief(self.id).get("note", ""))

    def label(self, **labels: str | None) -> Run:
        """Write labels, such as ``project="x"``; None takes one away.

        Raises:
            UsageError: a key or value is wrong, or there are too many.
        """
        self._client.describe(self.id, labels)
        return self

    def write_note(self, text: str) -> Run:
        """Write a note on it instead of the one that it has; an empty one takes it away.

        Raises:
            UsageError: it is too long.
        """
        self._client.describe(self.id, {}, text)
        return self

    @property
    def models(self) -> list[Model]:
        """What its tasks left in ``TRAINMASTER_OUTPUT_DIR``, as far as they have ended."""
        found = self._client.models(self.id)
        if not found:
            self._client.brief(self.id)  # a run that was removed has no models either
        return found

    @property
    def quote(self) -> RunQuote | None:
        """What was promised for it; None while nothing is."""
        return self.status().quote

    def status(self) -> RunStatus:
        """All about it now; its ``json`` is the object of ``trainmaster status RUN --json``."""
        return self._client.status(self.id)

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait until it has ended, however it does; Ctrl-C ends the waiting, not the run.

        Args:
            timeout_s: at most so many seconds; None for as long as it takes.

        Returns:
            Itself, for ``run.wait().check()``.

        Raises:
            WaitTimeoutError: it goes on.
            UndrivenError: it is undriven, so it does not go on.
            RunError: it waits for what the task that called this holds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        undriven_since: float | None = None
        while (brief := self._client.brief(self.id))["state"] != State.DONE:
            now = time.monotonic()
            if brief["driven"]:
                undriven_since = None
            else:
                undriven_since = now if undriven_since is None else undriven_since
                if now - undriven_since > self._client.undriven_s:
                    raise self._undriven()
            self._check_queue(brief)
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(
                    f"not ended after {timeout_s:g} s",
                    "It goes on: wait() again, or cancel() it.",
                    run=self.id,
                )
            time.sleep(_POLL_S if deadline is None else max(0.0, min(_POLL_S, deadline - now)))
        return self

    def check(self) -> Run:
        """Insist that it has succeeded.

        Returns:
            Itself.

        Raises:
            RunFailedError: it has ended in another way, and why.
            RunError: it has not ended.
        """
        status = self.status()
        if status.state is not State.DONE:
            raise RunError(f"it is {status.state}", "wait() for it first.", run=self.id)
        if status.reason is not EndReason.SUCCEEDED:
            bad = [each.message for each in status.experiments.values() if each.message]
            why = ": ".join(filter(None, (str(status.reason), status.message or "; ".join(bad))))
            raise RunFailedError(
                why, "Its logs() show what the tasks wrote; resume() tries again.", run=self.id
            )
        return self

    def logs(
        self,
        *,
        follow: bool = False,
        experiment: str | None = None,
        task: int | None = None,
        member: str | None = None,
        tail: int | None = None,
        grep: str | None = None,
        since: str | None = None,
        system: bool = False,
        attempt: int | None = None,
    ) -> Iterator[str]:
        """The lines that its tasks wrote, without their ends.

        Where there are several members or attempts, ``experiment/task#attempt member | `` precedes each.

        Args:
            follow: go on until the run has ended.
            experiment: only this one.
            task: only this number.
            member: only this one, such as ``worker-0``.
            tail: only so many last lines of each member.
            grep: only lines with this regular expression.
            since: only what was written since so long ago, such as ``5m``.
            system: instead what operating systems of its machines said; then a member is a machine.
            attempt: only this number.

        Raises:
            NotFoundError: it has no such experiment, task or member, or nothing is kept of its machines.
            UsageError: ``grep`` or ``since`` is none, or the logs are on another machine.
            UndrivenError: with ``follow``: it is undriven, so it does not go on.
        """
        rest = b""
        query = LogQuery(follow, experiment, task, member, tail, grep, since, system, attempt)
        for piece in self._client.logs(self.id, query):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
        if rest:
            yield rest.decode("utf-8", "replace")
        if follow and self.state is not State.DONE:
            raise self._undriven()

    def targets(self) -> list[dict[str, Any]]:
        """When its running tasks come to their ``target``, by their curves.

        Returns:
            ``experiment``, ``task``, ``metric``, ``condition``, ``step``, ``value``, ``chance``, ``steps``
            and ``left_s`` (p5, p50, p95; None: never), ``fan`` and ``words``.
        """
        return self._client.targets(self.id)

    def metrics(self, experiment: str | None = None, task: int | None = None) -> list[dict[str, Any]]:
        """What its tasks have reported: a dictionary per report, in order, as `pandas.DataFrame` takes them.

        Args:
            experiment: only this one.
            task: only this number.

        Returns:
            ``experiment``, ``task``, ``attempt``, and what was reported, such as ``step`` and ``loss``.
        """
        return self._client.metrics(self.id, experiment, task)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """What has happened to it, in order.

        Args:
            follow: go on until the run has ended.

        Raises:
            UndrivenError: with ``follow``: it is undriven, so nothing will happen.
        """
        last = 0
        undriven = 0
        while True:
            brief = self._client.brief(self.id)  # first: what came before it is still read
            while page := self._client.events(self.id, last):
                last = page[-1].id
                yield from page
            if not follow or brief["state"] == State.DONE:
                return
            undriven = 0 if brief["driven"] else undriven + 1
            if undriven * _POLL_S > self._client.undriven_s:
                raise self._undriven()
            time.sleep(_POLL_S)

    def cancel(self) -> Run:
        """End it: its members get SIGTERM, time to save, then SIGKILL. It can be resumed.

        Returns:
            Itself, once it has ended.
        """
        for _ in ending(self._client, self.id):
            pass
        return self

    def cancel_tasks(self, *tasks: str) -> list[dict[str, Any]]:
        """Ask for the end of single tasks, such as ``sweep/3``: all else of it goes on.

        Returns:
            ``experiment``, ``task``, ``state``, ``reason`` and ``message`` of each at present.

        Raises:
            UsageError: there is no such task.
        """
        return self._client.cancel_tasks(self.id, tasks)

    def remove(self) -> dict[str, Any]:
        """Remove it, once it is over, with all that nothing else needs.

        Returns:
            ``outcome`` (REMOVED, or TRIMMED: its record stays with what is needed), ``bytes``, ``parts``,
            and ``kept``: why something stays.

        Raises:
            UsageError: all of it stays: it is not over, or something needs it.
        """
        [found] = self._client.storage.remove_runs([self.id])["runs"]
        if found["outcome"] == "KEPT":
            first = found["kept"][0]
            raise UsageError(f"{self.id} stays: {first['why']}", first["hint"])
        return dict(found)

    def resume(self, *, wait: bool = True, max_usd: float | None = None) -> Run:
        """Go on with it: what succeeded stays, all else is done again.

        Args:
            wait: until it has ended; else return at once. A run that is driven is only waited for.
            max_usd: its ``budget.total`` from now on, of all that it costs and has cost; None: as before.

        Returns:
            Itself.

        Raises:
            UsageError: it cannot run here any more; names what is missing.
        """
        accepted = self._client.take_run(self.id, max_usd=max_usd)
        if accepted is not None:
            self.notes = leave(self._client, accepted)
        else:
            left = self._client.deliver_left(self.id)
            self.notes = (left,) if left else ()
        return self.wait() if wait else self

    def _undriven(self) -> UndrivenError:
        return UndrivenError(
            "nobody drives it: its driver was killed, or its machine started anew",
            "resume() goes on with it.",
            run=self.id,
        )

    def _check_queue(self, brief: dict[str, Any]) -> None:
        """A task that waits for a run that waits for the task's own cores would wait for ever."""
        outer = os.environ.get("TRAINMASTER_RUN")
        held = brief.get("queued", {}).get("held", {})
        if outer is not None and set(held) == {outer}:
            raise RunError(
                f"it waits for the cores that {outer} holds, whose task waits for it",
                "cancel() it. Give the outer run fewer workers, or the inner one a home of its own: "
                "`trainmaster.Client(home=...).start(...)`.",
                run=self.id,
            )


def leave(client: ClientProtocol, accepted: Accepted) -> tuple[str, ...]:
    """Leave a run that was just accepted to a driver of its own; notes for the user."""
    client.detach_run(accepted.run)
    own = ["it was started by a task, and ends with it"] * ("TRAINMASTER_ATTEMPT_ID" in os.environ)
    return (*accepted.notes, *own)


def ending(client: ClientProtocol, run: str) -> Iterator[dict[str, Any]]:
    """Ask for the end of a run, once, and yield its line until it has ended: the last one says why.

    It is asked again if it does not stop: its driver may have died, and a `resume` at the same moment takes
    the wish back.
    """
    client.cancel(run)
    asked = time.monotonic()
    while (line := client.brief(run))["state"] != State.DONE:
        yield line
        time.sleep(_POLL_S / 2)
        stops = line["state"] == State.STOPPING and line["driven"]
        if not stops and time.monotonic() - asked > _AGAIN_S:
            client.cancel(run)
            asked = time.monotonic()
    yield line
