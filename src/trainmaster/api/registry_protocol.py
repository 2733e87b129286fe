"""`RegistryProtocol`: what users ask of registered models, at home or of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trainmaster.spec.model_reference import ANY_VERSION


class RegistryProtocol(Protocol):
    """Registered models; answers are what ``--json`` prints, see `service.models.registry.Registry`.

    A version is named ``NAME@3``, ``NAME@ALIAS``, or ``NAME`` for the newest.

    Raises:
        NotFoundError: (every method) there is no such model, alias or version.
        UsageError: (every method) no name can be so.
    """

    def models(self) -> list[dict[str, Any]]:
        """All by name, each with its aliases."""

    def show(self, name: str) -> dict[str, Any]:
        """One with its versions, aliases, and who moved them."""

    def version(self, text: str) -> dict[str, Any]:
        """A version."""

    def register(
        self, model: str, name: str, alias: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Make a model of a run (``RUN/EXPERIMENT/TASK``) a version; that, and whether it is ``new``."""

    def promote(self, text: str, alias: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        """Have an alias mean a version; the version, and whether the alias ``moved``.

        Raises:
            AliasMovedError: it does not mean the version that was ``expected`` (None: none).
        """

    def rollback(self, text: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        """Have ``NAME@ALIAS`` mean what it meant before; the version, as `promote`."""

    def remove_alias(self, text: str) -> None:
        """Take ``NAME@ALIAS`` away."""

    def remove(self, text: str) -> dict[str, Any]:
        """Take ``NAME@3`` out of the registry; the version that there was.

        Raises:
            ModelInUseError: an alias means it, or a run that is not over starts from it.
        """

    def describe(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Change what is said of a model; None leaves it."""

    def diff(self, a: str, b: str) -> dict[str, Any]:
        """In what two models differ."""
