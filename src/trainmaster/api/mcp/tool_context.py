"""`ToolContext`: whom tools ask, and where the recipes lie that an assistant names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.api.remote.remote import RemoteClient
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from trainmaster.api.protocol import ClientProtocol
    from trainmaster.api.remote.connection import RestConnection


class ToolContext(Protocol):
    """Whom the tools of one assistant ask.

    Attributes:
        client: a home, or a server.
        scopes: what it may, of `trainmaster.service.users.caller.SCOPES`.
        has_files: recipes may be named as files of this machine.
    """

    client: ClientProtocol
    scopes: frozenset[str]
    has_files: bool

    def recipe(self, named: Mapping[str, Any]) -> tuple[Any, str]:
        """What ``recipe``, ``file``, ``code`` and ``provider`` mean, and where it was read.

        Raises:
            RecipeError: with all mistakes.
            UsageError: there is neither, or both.
        """

    def check(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """What a recipe says, as ``trainmaster check --json`` shows it, and ``notes``."""


class LocalToolContext:
    """The assistant is on this machine, and is its user: recipes are files here, or texts for its directory.

    Args:
        client: a home, or a server that this user has logged in to.
        is_reading: it starts nothing, and ends nothing.
    """

    has_files = True

    def __init__(self, client: ClientProtocol, *, is_reading: bool = False) -> None:
        self.client = client
        self.scopes = frozenset({"read"} if is_reading else {"read", "run"})

    def recipe(self, named: Mapping[str, Any]) -> tuple[Any, str]:
        """See `ToolContext`."""
        from trainmaster.spec import Recipe, read_recipe
        from trainmaster.spec.recipe_source import configuration_files

        file, text, provider = (named.get(key) for key in ("file", "recipe", "provider"))
        if (file is None) == (text is None):
            raise _one_of("file")
        if file is not None:
            return read_recipe(file, provider=provider), file
        if "\n" not in (text or "").strip() and Path(text or "").is_file():
            raise UsageError(f"`recipe` is a recipe's text, and {text} is a file", "Name it as `file`.")
        here = Path.cwd()
        files = configuration_files(here, os.environ)
        found = Recipe.from_text(text or "", directory=here, provider=provider, defaults=files)
        return found, str(here / "recipe.yaml")

    def check(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """See `ToolContext`."""
        from trainmaster.control.checks.framework_notes import framework_notes

        found, _ = self.recipe(named)
        return {**found.summary(), "notes": [*found.notes, *framework_notes(found, os.environ)]}


class ServerToolContext:
    """The assistant is anywhere, and asks a server with a token of it: recipes are texts, read there.

    Args:
        connection: to the server, with that token.
        scopes: of the token.
    """

    has_files = False

    def __init__(self, connection: RestConnection, scopes: frozenset[str]) -> None:
        self._to, self.scopes = connection, scopes
        self.client: ClientProtocol = _ClientOfTexts(connection)

    def recipe(self, named: Mapping[str, Any]) -> tuple[Any, str]:
        """See `ToolContext`."""
        if named.get("recipe") is None:
            raise UsageError("a recipe is needed", "Give its YAML as `recipe`.")
        return {key: named[key] for key in ("recipe", "code", "provider") if named.get(key) is not None}, ""

    def check(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """See `ToolContext`."""
        return dict(self._to.post("/recipes/check", self.recipe(named)[0], repeats=True))


class _ClientOfTexts(RemoteClient):
    """Its recipes are bodies of requests: the server reads them, with the rights of their team."""

    def _sent(self, recipe: Any) -> Generator[str, None, dict[str, Any]]:  # noqa: ANN401 - a body
        yield from ()
        return dict(recipe)


def _one_of(other: str) -> UsageError:
    return UsageError(f"a recipe is needed, as `{other}` or as `recipe`", "Give one of them.")
