"""`VerbGroup` says in two lines what is wrong; `DefaultGroup`: ``models RUN`` means ``models list RUN``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from trainmaster.spec.errors import UsageError


class VerbGroup(TyperGroup):
    """A group of verbs that says in two lines what is wrong before its verbs begin."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own types are private
        """Read what stands before the verb."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # of a private type
            if not {"option_name", "param"} & set(vars(error)):
                raise
            hint = f"`{ctx.command_path} --help` says what it takes."
            message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
            raise UsageError(f"{ctx.command_path}: {message}", hint) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        """The verb that is meant."""
        if not ctx.resilient_parsing and args and args[0] not in self.commands:
            raise self._no_such_verb(ctx.command_path, args[0])[0]
        return super().resolve_command(ctx, args)

    def _no_such_verb(self, path: str, word: str, but: str = "") -> tuple[UsageError, bool]:
        """What to say, and whether a verb is near: one that is shown, and another one than ``but``."""
        from trainmaster.spec.node import nearest

        near = nearest(word, [name for name in self.commands if name != but and not name.startswith("_")])
        hint = f"Did you mean {near}?" if near else f"`{path} --help` lists its verbs."
        return UsageError(f"{path} has no {word}", hint), near is not None


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
