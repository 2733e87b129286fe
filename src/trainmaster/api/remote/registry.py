"""`RemoteRegistry`: registered models of a server; fulfils `RegistryProtocol` and is described there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainmaster.api.remote.connection import RestConnection, quoted
from trainmaster.spec.model_reference import ANY_VERSION, ModelReference, checked_alias, checked_name


class RemoteRegistry:
    """Those of the team.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: RestConnection) -> None:
        self._to = connection

    def models(self) -> list[dict[str, Any]]:
        return list(self._to.get("/registry")["models"])

    def show(self, name: str) -> dict[str, Any]:
        return dict(self._to.get(f"/registry/{quoted(name)}"))

    def version(self, text: str) -> dict[str, Any]:
        found = dict(self._to.get(self._path(text)))
        del found["lineage"]
        return found

    def _path(self, text: str) -> str:
        wanted = ModelReference.parse(text)
        return f"/registry/{quoted(wanted.name)}/versions/{wanted.tail}"

    def register(
        self, model: str, name: str, alias: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        body = {"model": model, "name": checked_name(name), "tags": dict(tags or {})}
        body |= {} if alias is None else {"alias": checked_alias(alias)}
        return dict(self._to.post("/registry", body, repeats=True))

    def promote(self, text: str, alias: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        checked_alias(alias)
        wanted = ModelReference.parse(text)
        body: dict[str, Any] = {"version": wanted.tail} | (
            {} if expected == ANY_VERSION else {"expected": expected}
        )
        path = f"/registry/{quoted(wanted.name)}/aliases/{alias}"
        return dict(self._to.ask("PUT", path, {}, json.dumps(body).encode()))

    def rollback(self, text: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        alias = (wanted := ModelReference.parse(text)).must_alias
        # Sent twice it would go two versions back: what it means now is said, too.
        present = self.version(text)["version"] if expected == ANY_VERSION else expected
        path = f"/registry/{quoted(wanted.name)}/aliases/{alias}/rollback"
        return dict(self._to.post(path, {"expected": present}))

    def remove_alias(self, text: str) -> None:
        alias = (wanted := ModelReference.parse(text)).must_alias
        self._to.ask("DELETE", f"/registry/{quoted(wanted.name)}/aliases/{alias}", {})

    def remove(self, text: str) -> dict[str, Any]:
        return dict(self._to.ask("DELETE", self._path(text), {}))

    def describe(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        body = {"description": description, "tags": None if tags is None else dict(tags)}
        path = f"/registry/{quoted(name)}"
        return dict(self._to.ask("PATCH", path, {}, json.dumps(body).encode()))

    def diff(self, a: str, b: str) -> dict[str, Any]:
        return dict(self._to.get("/models-diff", a=a, b=b))
