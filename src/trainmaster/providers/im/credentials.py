"""`ImCredentials`: what Infrastructure Manager is told with every call, as its own file has it.

IM keeps no credentials: the login to itself and those of every cloud travel in one header. The file is IM's
(``id = ec2; type = EC2; username = ...; password = ...``, a record per line, or the same as JSON).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import require_private

#: The type of the record that is the login to IM itself.
SERVER: Final = "InfrastructureManager"
#: Types that are no clouds.
_NO_CLOUDS: Final = frozenset({SERVER, "VMRC", "EGIIS", "Vault"})
_EXAMPLE: Final = (
    "type = InfrastructureManager; username = me; password = '...'\n"
    "id = ec2; type = EC2; username = ACCESS_KEY_ID; password = SECRET_ACCESS_KEY"
)
_ID: Final = re.compile(r"[A-Za-z_.][A-Za-z0-9_.-]*")
#: Fields that may be told; whatever else a record has is taken for a secret.
_PUBLIC: Final = frozenset(
    {"id", "type", "host", "username", "tenant", "domain", "auth_version", "service_region", "project", "vo"}
)
#: What a header can hold, and new lines, which are written otherwise there.
_SENDABLE: Final = re.compile(r"[\n\x20-\x7e\xa0-\xff]*")
_HIDDEN: Final = "***"
#: What is shorter would hide words that have nothing to do with it.
_LEAST_SECRET: Final = 4


@dataclass(frozen=True, slots=True)
class ImCredentials:
    """Records of one file.

    Attributes:
        records: as they are, in order.
    """

    records: tuple[Mapping[str, str], ...] = field(repr=False)

    @property
    def header(self) -> str:
        """What stands in ``Authorization``: a backslash and an ``n`` between records.

        >>> ImCredentials(({"id": "a", "type": "EC2", "password": "x;y"},)).header
        "id = a ; type = EC2 ; password = 'x;y'"
        """
        lines = (
            " ; ".join(f"{name} = {_quoted(value)}" for name, value in each.items()) for each in self.records
        )
        return r"\n".join(lines)

    @property
    def clouds(self) -> dict[str, str]:
        """Id of each cloud -> its type, such as ``EC2``."""
        return {each["id"]: each["type"] for each in self.records if each["type"] not in _NO_CLOUDS}

    def hidden(self, text: str) -> str:
        """A text of IM's without secrets that it may quote."""
        secrets = {
            part
            for each in self.records
            for name, value in each.items()
            if name not in _PUBLIC
            for part in (value, *value.splitlines())
            if len(part) >= _LEAST_SECRET
        }
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text


def read_credentials(file: Path) -> ImCredentials:
    """Read a file of IM's.

    Raises:
        UsageError: it is not there, others may read it, or it is no such file; no value is ever told.
    """
    with fails_as(f"{file} cannot be read", "Give the path of IM's credentials."):
        try:
            require_private(file)
            text = file.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise UsageError(
                f"there are no credentials for Infrastructure Manager in {file}",
                f"Write the file as IM has it, and `chmod 600` it:\n{_EXAMPLE}",
            ) from None
    return parse_credentials(text, file)


def parse_credentials(text: str, file: Path) -> ImCredentials:
    """Records of a text.

    Args:
        text: records line by line, or JSON.
        file: that it is from: for messages, and for values that are ``file(PATH)``.

    Raises:
        UsageError: what it says is not what IM takes.
    """
    records = _from_json(text, file) if text.lstrip().startswith("[") else _from_lines(text, file)
    seen: set[str] = set()
    for number, record in records:
        where = f"{file}: record {number}"
        if not record.get("type"):
            raise UsageError(f"{where} has no type", f"A record is such as\n{_EXAMPLE}")
        name = record.get("id", "")
        if name and not _ID.fullmatch(name):
            raise UsageError(f"{where} has an id that IM does not take", "Begin it with a letter.")
        if record["type"] not in _NO_CLOUDS and not name:
            raise UsageError(f"{where} ({record['type']}) has no id", "Give it one, such as `id = mycloud`.")
        if any(not _SENDABLE.fullmatch(text) for text in (*record, *record.values())):
            raise UsageError(f"{where} has a character that HTTP does not carry", "Use plain ones.")
        if name and name in seen:
            raise UsageError(f"{where}: the id {name} is there twice", "Give each record an id of its own.")
        seen.add(name)
    found = ImCredentials(tuple(record for _, record in records))
    if not any(record["type"] == SERVER for record in found.records):
        raise UsageError(f"{file} has no record of the type {SERVER}", f"Write one:\n{_EXAMPLE}")
    return found


def _from_json(text: str, file: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        listed = typed(list[dict[str, Any]], parsed_json(text))
    except ValueError:
        hint = f"Or write records line by line:\n{_EXAMPLE}"
        raise UsageError(f"{file} is no list of records in JSON", hint) from None
    return [
        (number, {name: _from_file(str(value), file) for name, value in each.items()})
        for number, each in enumerate(listed, 1)
    ]


def _from_lines(text: str, file: Path) -> list[tuple[int, dict[str, str]]]:
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        record = {}
        for part in _split(line, ";"):
            if not part.strip():
                continue
            name, *value = _split(part, "=", most=1)
            if not value or not name.strip():
                hint = f"A record is such as\n{_EXAMPLE}"
                raise UsageError(f"{file}: line {number} is no record `name = value; ...`", hint)
            record[name.strip()] = _from_file(_unquoted(value[0].strip()).replace(r"\n", "\n"), file)
        records.append((number, record))
    return records


def _from_file(value: str, file: Path) -> str:
    """What a value ``file(PATH)`` stands for: IM would look for it on its own machine."""
    if not (value.startswith("file(") and value.endswith(")")):
        return value
    named = file.parent / Path(value[5:-1]).expanduser()
    with fails_as(f"{file} names {named}, which cannot be read", "Correct the path."):
        return named.read_text()


def _split(text: str, separator: str, most: int = -1) -> list[str]:
    """Parts of a text; a separator within quotes is none."""
    parts, quote = [""], ""
    for char in text:
        if quote or char in "'\"":
            quote = "" if char == quote else quote or char
        elif char == separator and (most < 0 or len(parts) <= most):
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _quoted(value: str) -> str:
    value = value.replace("\n", r"\\n")
    if not re.search("[;='\"]", value) and value == value.strip():
        return value
    mark = '"' if "'" in value else "'"
    return f"{mark}{value}{mark}"
