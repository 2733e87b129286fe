"""`read_output`: what Ansible has said, as far as it matters to a run. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass, field

_BANNER: Final = re.compile(r"(?:TASK|RUNNING HANDLER) \[(.*?)\] \**$")
_PLACE: Final = re.compile(r"task path: (.+)$")
_RESULT: Final = re.compile(r"(ok|changed|skipping|included|fatal|failed): \[([^\]]+)\](.*)$")
_RECAP: Final = re.compile(r"(\S+)\s+: ok=\d+ .*?unreachable=(\d+)\s+failed=(\d+)")
_ERROR: Final = re.compile(r"(?:\[ERROR\]:|ERROR!) (.+)$")
_ORIGIN: Final = re.compile(r"Origin: (\S+?)(?::(\d+)(?::\d+)?)?$")
_OLD_ORIGIN: Final = re.compile(r"The error appears to be in '(.+)': line (\d+)")
_COLLECTION: Final = re.compile(
    r"couldn't resolve module/action '(\w+\.\w+)\.|(?:No module named 'ansible_collections\.(\w+\.\w+)'"
    r"|the role '(\w+\.\w+)\.\w+' was not found)"
)
_MOST_WORDS: Final = 300


@dataclass(frozen=True, slots=True)
class RoleFailure:
    """A task that failed on a host.

    Attributes:
        host: by its name in the inventory.
        task: its name, with the role's before it.
        place: ``FILE:LINE``; empty if Ansible did not say.
        words: what was wrong.
        is_unreachable: the host did not answer.
    """

    host: str
    task: str
    place: str
    words: str
    is_unreachable: bool = False


@dataclass(slots=True)
class AnsibleOutput:
    """What was said.

    Attributes:
        task, place: the last one that began.
        answered: hosts that have answered to it.
        failures: the last one of each host; some may have been rescued.
        bad: hosts that did not come through, once all was over.
        is_over: Ansible came to its end.
        error: what kept it from beginning or going on; error_place: where that is.
        collection: that is missing.
    """

    task: str = ""
    place: str = ""
    answered: set[str] = field(default_factory=set)
    failures: dict[str, RoleFailure] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    is_over: bool = False
    error: str = ""
    error_place: str = ""
    collection: str = ""

    @property
    def failed(self) -> list[RoleFailure]:
        """What counts: of hosts that did not come through, if all was over, in the order of their names."""
        return [self.failures[name] for name in sorted(self.failures) if not self.is_over or name in self.bad]

    def silent(self, hosts: Sequence[str]) -> list[str]:
        """Those of some hosts that have not answered to the last task; all of them if unknown."""
        waiting = [host for host in hosts if host not in self.answered and host not in self.failures]
        return waiting or list(hosts)


def read_output(text: str) -> AnsibleOutput:
    """Read what ``ansible-playbook`` has said at verbosity 2, also if it was ended in between."""
    found = AnsibleOutput()
    lines = iter(text.splitlines())
    for line in lines:
        if match := _BANNER.match(line):
            found.task, found.place, found.answered = match[1], "", set()
        elif match := _PLACE.match(line):
            found.place = match[1]
        elif match := _RESULT.match(line):
            _take_result(found, match, lines)
        elif line.startswith("PLAY RECAP"):
            found.is_over = True
        elif found.is_over and (match := _RECAP.match(line)):
            if int(match[2]) or int(match[3]):
                found.bad.add(match[1])
        elif match := _ERROR.match(line):
            found.error, found.error_place = match[1].strip(), ""
        elif not found.error_place and (match := _ORIGIN.match(line) or _OLD_ORIGIN.search(line)):
            found.error_place = ":".join(part for part in match.groups() if part)
        if match := _COLLECTION.search(line):
            found.collection = next(part for part in match.groups() if part)
    return found


def _take_result(found: AnsibleOutput, match: re.Match[str], lines: Iterable[str]) -> None:
    kind, host, rest = match.groups()
    host = host.partition(" -> ")[0]  # a task that was delegated is still that host's
    found.answered.add(host)
    if kind not in ("fatal", "failed"):
        return
    said, brace, _ = rest.partition("{")
    text = rest[len(said) :] if brace else ""
    if text == "{":  # some results are written over several lines
        for line in lines:
            text += line
            if line == "}":
                break
    found.failures[host] = RoleFailure(
        host=host,
        task=found.task,
        place=found.place,
        words=_words(text) or said.strip(" !=>"),
        is_unreachable="UNREACHABLE!" in said,
    )


def _words(text: str) -> str:
    """What a result says, in a line."""
    try:
        result: Any = json.loads(text)
    except ValueError:
        return text[:_MOST_WORDS]
    if not isinstance(result, dict):
        return str(result)[:_MOST_WORDS]
    said = [_first(result.get("msg"))]
    for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
        if last := _last(result.get(key)):
            said.append(last)
            break
    return ": ".join(dict.fromkeys(each for each in said if each))[:_MOST_WORDS]


def _first(value: object) -> str:
    lines = str(value or "").strip().splitlines()
    return lines[0].strip() if lines else ""


def _last(value: object) -> str:
    lines = str(value or "").strip().splitlines()
    return lines[-1].strip() if lines else ""
