"""`Draft`: a recipe that is being made of a file of another tool, with what a person has to see to. Pure."""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.service.conversion.secrets import without_secrets
from trainmaster.spec.node import resolve

_PLAIN: Final = re.compile(r"[A-Za-z0-9_/.~$@][\w./@+:=$~-]*")
#: A script that YAML needs no quotes for.
_ONE_LINE: Final = re.compile(r"[A-Za-z_./~][ -~]*[!-~]|[A-Za-z]")
_HIDDEN: Final = re.compile(r"\*{2,}")
#: In their order in a recipe.
_TOP: Final = ("provider", "code", "budget", "labels")
_KEYS: Final = (
    "after", "parameters", "workers", "serve", "distributed", "framework", "container", "hardware", "aliases",
    "data", "env", "secrets", "timeout", "grace", "retries", "setup", "command",
)  # fmt: skip


@dataclass(slots=True)
class ExperimentDraft:
    """An experiment: its keys with their values, and what is to be said beside a key.

    Attributes:
        name: of the experiment.
        keys: texts, numbers, lists and mappings; of ``setup`` and ``command`` the script.
        remarks: by key.
    """

    name: str
    keys: dict[str, object] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """A recipe, and what the file says beyond it.

    Attributes:
        tool: which file it is made of.
        name: of the recipe.
        keys: of the whole recipe.
        remarks: beside these.
        experiments: in their order.
        decisions: with the line in the file: what a person has to look at.
        dropped: with the line and what stands there: what has no key, and why.
    """

    tool: str
    name: str
    keys: dict[str, object] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    experiments: list[ExperimentDraft] = field(default_factory=list)
    decisions: list[tuple[int, str, str]] = field(default_factory=list)
    dropped: list[tuple[int, str, str]] = field(default_factory=list)

    def drop(self, line: int, text: str, why: str) -> None:
        """Note what has no key."""
        self.dropped += [(line + at, part, why) for at, part in enumerate(_parts(text))]

    def decide(self, line: int, text: str, what: str) -> None:
        """Note what is to be decided."""
        self.decisions.append((line, " ".join(_parts(text)), what))

    def text(self, file: str) -> str:
        """The recipe.

        Args:
            file: the name of what it is made of.
        """
        lines = [f"# Made of {json.dumps(PurePath(file).name)} ({self.tool}) by `trainmaster convert`."]
        lines.append(f"name: {written(self.name)}")
        lines += [
            _line("", key, self.keys[key], self.remarks.get(key, "")) for key in _TOP if key in self.keys
        ]
        lines.append("experiments:")
        for each in self.experiments:
            lines.append(f"  {written(each.name)}:")
            for key in _KEYS:
                if key in each.keys:
                    lines.append(_line("    ", key, each.keys[key], each.remarks.get(key, "")))
        lines += _comments("To decide, with the line in that file", self.decisions)
        lines += _comments("Dropped, with the line in that file and the reason", self.dropped)
        return "\n".join(lines) + "\n"


def _parts(text: str) -> list[str]:
    safe = _HIDDEN.sub("***", without_secrets(text))
    return [
        printable(part.strip().rstrip("\\").rstrip()) for part in safe.splitlines() if part.strip(" \t\\")
    ]


def printable(text: str) -> str:
    """A text with spaces in place of what is shown by no letter, such as an end of a line."""
    return "".join(each if each.isprintable() else " " for each in text)


def _comments(title: str, notes: list[tuple[int, str, str]]) -> list[str]:
    if not notes:
        return []
    return [
        "",
        f"# {title}:",
        *(f"# {line}: {text}{'  -> ' * bool(text)}{why}" for line, text, why in sorted(dict.fromkeys(notes))),
    ]


def _line(indent: str, key: str, value: object, remark: str) -> str:
    said = f"  # {printable(remark)}" if remark else ""
    if key in ("setup", "command") and isinstance(value, str) and value.strip():
        text = value.strip("\n")
        if (
            _ONE_LINE.fullmatch(text)
            and not re.search(r":\s|\s#|:$", text)
            and isinstance(resolve(text), str)
        ):
            return f"{indent}{key}: {text}{said}"
        body = "\n".join(f"{indent}  {part}" if part else "" for part in text.split("\n"))
        return f"{indent}{key}: |{said}\n{body}"
    return f"{indent}{key}: {written(value)}{said}"


def written(value: object) -> str:
    """A value in YAML, on one line.

    >>> written({"gpu": "A100", "gpus": 8, "region": ["us-east-1", "no"], "spot": True, "n": "8"})
    '{gpu: A100, gpus: 8, region: [us-east-1, "no"], spot: true, n: "8"}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(key)}: {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    is_plain = _PLAIN.fullmatch(value) and not value.endswith(":") and ": " not in value
    is_text = is_plain and isinstance(resolve(value), str) and value.lower() not in ("yes", "no", "on", "off")
    return value if is_text else json.dumps(value, ensure_ascii=False)
