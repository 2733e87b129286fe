"""`DefaultGroup`: ``models RUN`` means ``models list RUN``."""

from __future__ import annotations

from typing import Any

from trainmaster.cli.app import VerbGroup


class DefaultGroup(VerbGroup):
    """A group whose first word may be something else than a command: then ``list`` is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own types are private
        """Put ``list`` in front unless a command or ``--help`` is there."""
        if ctx.resilient_parsing:  # a shell asks what may come here
            return super().parse_args(ctx, args)
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            self._refuse_unknown(ctx.command_path, args)
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def _refuse_unknown(self, path: str, args: list[str]) -> None:
        """Say that there is no such verb, where what ``list`` takes cannot be meant.

        Raises:
            UsageError: the first word is no verb, and ``list`` takes no word, or only one.
        """
        words = [each for each in args if not each.startswith("-")]
        takes = any(each.param_type_name == "argument" for each in self.commands["list"].params)
        if not words or args[0] != words[0] or (takes and len(words) == 1):
            return
        error, is_near = self._no_such_verb(path, words[0], but="list")
        if is_near or not takes:
            raise error
