"""`invoke`: a verb of the command line in this process."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import typer

from trainmaster.cli.app import app

#: What Python does with what it cannot write on either stream.
ERRORS = ("strict", "backslashreplace")


class Said(NamedTuple):
    """How a call ended, and what it has said."""

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        """As text."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """As text."""
        return self.stderr_bytes.decode(errors="replace")


@cache
def whole_command() -> Any:
    """All verbs; they are put together once per process, as that takes longer than most verbs do."""
    return typer.main.get_command(app)


def invoke(*words: object, typed: str = "") -> Said:
    """A call with these words, which reads what was typed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", how, write_through=True) for how in ERRORS)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.stdin", io.StringIO(typed)),
    ):
        try:
            code = whole_command().main([str(word) for word in words], "trainmaster")
        except SystemExit as end:
            code = end.code
        return Said(code or 0, *(each.buffer.getvalue() for each in (out, err)))  # type: ignore[attr-defined]
