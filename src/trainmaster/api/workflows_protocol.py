"""`WorkflowsProtocol`: what users ask of recipes that a server starts by itself."""

from __future__ import annotations

from typing import Any, Protocol


class WorkflowsProtocol(Protocol):
    """Recipes that a server starts by itself; answers are as of `service.workflows.workflows.Workflows`.

    Raises:
        NotFoundError: (every method with a name) there is none of that name.
    """

    def listed(self) -> list[dict[str, Any]]:
        """All by name, each with what starts it and its newest start."""

    def show(self, name: str) -> dict[str, Any]:
        """One with its recipe and history."""

    def register(self, plan: str, *, starts_now: bool = False, keep_s: float = 0.0) -> dict[str, Any]:
        """Keep what was planned, of a recipe with ``on``; ``secret`` of its webhook is shown this once.

        Args:
            plan: id of a `RunPlan`; its price is agreed to for each run.
            starts_now: start a run at once, too.
            keep_s: how long rented machines stay warm for the next run, in seconds.

        Raises:
            UsageError: nothing starts it, it would start itself, or this is no server.
        """

    def pause(self, name: str) -> dict[str, Any]:
        """Start nothing until `resume`."""

    def resume(self, name: str) -> dict[str, Any]:
        """Go on, with what comes from now on."""

    def trigger(self, name: str) -> dict[str, Any]:
        """Start a run by hand."""

    def remove(self, name: str) -> None:
        """Forget it and its history; its runs stay."""

    def rotate(self, name: str) -> dict[str, Any]:
        """A new ``secret`` of its webhook.

        Raises:
            UsageError: it has none.
        """
