"""`RoleState`: what a machine keeps of its roles, and how what a call has left on it is ended. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainmaster.control.checks.ansible import CALL_VARIABLE


@dataclass(frozen=True, slots=True)
class RoleState:
    """What stands in a file of the machine.

    Attributes:
        have: digests of the roles that it has, by how the recipe names them.
        call: that gives it roles now, or did when its driver was killed.
    """

    have: Mapping[str, str] = field(default_factory=dict)
    call: str = ""

    @classmethod
    def from_text(cls, text: str) -> RoleState:
        """Read it; a machine whose file says nothing that we understand has no roles."""
        try:
            found = json.loads(text)
        except ValueError:
            return cls()
        have, call = (found.get("have"), found.get("call")) if isinstance(found, dict) else (None, None)
        return cls(have if isinstance(have, dict) else {}, call if isinstance(call, str) else "")

    def begun(self, names: Iterable[str], call: str) -> RoleState:
        """While these roles are run: if that ends in between, it has none of them."""
        gone = set(names)
        return RoleState({name: digest for name, digest in self.have.items() if name not in gone}, call)

    def ended(self, has: Mapping[str, str]) -> RoleState:
        """When nothing runs any more, and it has these roles besides."""
        return RoleState({**self.have, **has})

    def lacks(self, wanted: Mapping[str, str]) -> bool:
        """Whether one of these roles is missing, or was another one when it was run."""
        return any(self.have.get(name) != digest for name, digest in wanted.items())


def read_command(root: str) -> str:
    """A command that says what the file says; nothing without one."""
    return f"cat -- {shlex.quote(_file(root))} 2>/dev/null || true"


def write_command(root: str, state: RoleState) -> str:
    """A command that replaces the file."""
    file = shlex.quote(_file(root))
    said = shlex.quote(json.dumps({"have": dict(state.have), "call": state.call}))
    folder = shlex.quote(f"{root}/roles")
    return f"mkdir -p -- {folder} && printf %s {said} > {file}.new && mv -f -- {file}.new {file}"


def end_command(call: str) -> str:
    """A command that kills what tasks of a call have left: a login that is lost does not end it."""
    mark = shlex.quote(f"{CALL_VARIABLE}={call}")
    script = (
        f"n=0; while found=$(grep -lF -- {mark} /proc/[0-9]*/environ 2>/dev/null); "
        '[ -n "$found" ] && [ $n -lt 50 ]; do '
        "for each in $found; do pid=${each#/proc/}; kill -9 ${pid%/environ}; done; n=$((n + 1)); done"
    )
    as_root = f"[ $(id -u) = 0 ] || sudo -n sh -c {shlex.quote(script)}"  # of tasks with `become`
    return f"{{ sh -c {shlex.quote(script)}; {as_root}; }} >/dev/null 2>&1 || true"


def _file(root: str) -> str:
    return f"{root}/roles/state.json"
