"""`DefaultGroup`: ``models RUN`` means ``models list RUN``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DefaultGroup(TyperGroup):
    """A group whose first word may be something else than a command: then ``list`` is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own types are private
        """Put ``list`` in front unless a command or ``--help`` is there."""
        if ctx.resilient_parsing:  # a shell asks what may come here
            return super().parse_args(ctx, args)
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)
