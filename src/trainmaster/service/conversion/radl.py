"""`read_radl`: RADL, the language of Infrastructure Manager, as far as it says what machines are wanted.

Roles with their variables, out of the playbooks that documents of Infrastructure Manager have in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.conversion.description import ClusterDescription, MachineGroup, RoleUse, size_of
from trainmaster.service.conversion.secrets import without_secrets
from trainmaster.spec.errors import UsageError
from trainmaster.spec.plain_json import parsed_yaml

#: Of a play whose roles are all that matters in it.
_BESIDE: Final = {"hosts", "roles", "vars", "become", "become_user", "name", "gather_facts"}


def roles_of(source: str, shown: str, on: str) -> Iterator[RoleUse]:
    """The roles that a playbook names, in their order.

    Args:
        source: the playbook.
        shown: the same without values of secrets.
        on: which machines get them.
    """
    for play in _plays(source):
        for entry in play.get("roles") or ():
            role = {"role": entry} if isinstance(entry, str) else entry
            name = role.get("role", role.get("name")) if isinstance(role, dict) else None
            if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name):
                inner: dict[str, Any] = {
                    key: value for key, value in role.items() if key not in ("role", "name", "vars")
                }
                given: dict[Any, Any] = {}
                for some in (play.get("vars"), inner, role.get("vars")):
                    given |= some if isinstance(some, dict) else {}
                yield RoleUse(name, on, {str(key): _safe(key, value, shown) for key, value in given.items()})


def is_roles_only(source: str) -> bool:
    """Whether a playbook has nothing but roles."""
    plays = _plays(source)
    return bool(plays) and all(play.get("roles") and set(play) <= _BESIDE for play in plays)


def _safe(key: object, value: Any, shown: str) -> object:  # noqa: ANN401 - whatever stands there
    """A value, or the name of a secret in its place: what is hidden where the document is shown."""
    if isinstance(value, dict):
        return {str(name): _safe(name, each, shown) for name, each in value.items()}
    if isinstance(value, list):
        return [_safe(key, each, shown) for each in value]
    line = f"{key}: {value}"
    if isinstance(value, str) and value and (value not in shown or without_secrets(line) != line):
        return {"secret": re.sub(r"\W", "_", str(key)).upper()}
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _plays(source: str) -> list[dict[str, Any]]:
    try:
        found = parsed_yaml(source)
    except ValueError:  # it is dropped, with its lines
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


_TOKEN: Final = re.compile(
    r"(?P<space>\s+|\#[^\n]*)"
    r"|(?P<body>@begin.*?@end)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<number>\d+(?:\.\d+)?[A-Za-z]*(?![\w.]))"
    r"|(?P<name>[A-Za-z_][\w.\-/*]*)"
    r"|(?P<sign>>=|<=|[=<>()\[\],])",
    re.DOTALL,
)
_STEP: Final = re.compile(r"system\s+([\w.-]+)\s+configure\s+([\w.-]+)(?:\s+step\s+(\d+))?")
_APPLICATION: Final = re.compile(
    r"ansible\.(?:modules|roles)\.(?P<source>[^'|\")\s]+)(?:\|(?P<name>[\w.-]+))?"
)
_BLOCKS: Final = ("network", "system", "configure", "ansible", "description")
_SIGNS: Final = ("=", ">=", "<=", ">", "<", "contains")
_ROLE: Final = "tasks of Ansible: put them into a role, and its directory under `roles`"
_ORDER: Final = "roles run in the order of the list; `roles: {ps: [...], worker: [...]}` says who gets which"
#: By the beginning of a property: why no recipe says it.
_REASONS: Final = (
    ("net_interface", "members of a gang reach each other, and find each other by variables"),
    ("disk.0.os.credentials", "credentials are the provider's, never a recipe's"),
    ("disk.0.image", "the image of machines is a setting of the provider"),
    ("disk.0.os", "the image of machines is a setting of the provider"),
    ("disk.0.applications", "a role of Ansible: name it in a requirements.yml under `roles`"),
    ("disk", "machines have one disk"),
    ("auth", "credentials are the provider's, never a recipe's"),
)
#: Properties that are settings of a cloud in im.yaml.
_SETTINGS: Final = {"disk.0.image.url": "image", "disk.0.os.credentials.username": "user"}
_NETWORK: Final = "networks are a setting of the provider (`public_network`, `private_network` in im.yaml)"
_OUT: Final = "nothing is open to the world but SSH; `trainmaster open` and `port-forward` lead to ports"


@dataclass(frozen=True, slots=True)
class _RadlToken:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Feature:
    """``name sign value``, where it stands, and how it is written there."""

    name: str
    sign: str
    value: str
    line: int
    text: str


def read_radl(source: str, file: str) -> ClusterDescription:
    """Read a document in RADL.

    Raises:
        UsageError: it is none, with the place in it.
    """
    return _RadlReader(source, file).read()


class _RadlReader:
    def __init__(self, source: str, file: str) -> None:
        self._source = source
        #: The same, character by character: what is shown of it.
        self._shown = without_secrets(source)
        self._file = file
        self._tokens = self._split()
        self._next = 0
        self._found = ClusterDescription("RADL")
        self._types: dict[str, tuple[MachineGroup, list[_Feature]]] = {}
        self._configures: dict[str, tuple[int, int, str, str]] = {}
        #: Which system gets which `configure`, and at which step.
        self._steps: list[tuple[int, str, str]] = []

    def read(self) -> ClusterDescription:
        while (token := self._peek()) is not None:
            self._next += 1
            if token.text in _BLOCKS:
                self._block(token)
            elif token.text == "deploy":
                self._deploy(token)
            elif token.text == "contextualize":
                self._contextualize()
            else:
                raise self._wrong(token, "a word that begins nothing in RADL")
        if not any(machine.count for machine, _ in self._types.values()):
            raise UsageError(
                f"{self._file}: it deploys no machines", "A RADL document says `deploy NAME NUMBER`."
            )
        for machine, features in self._types.values():
            self._take(machine, features)
        self._take_roles()
        return self._found

    def _take_roles(self) -> None:
        """The roles of `configure` blocks, in the order of their steps; other tasks are dropped."""
        named = {name for _, _, name in self._steps}
        steps = [*sorted(self._steps, key=lambda each: each[0])]
        steps += [
            (0, name if name in self._types else "", name) for name in self._configures if name not in named
        ]
        for _, system, name in steps:
            if name not in self._configures or (system and not self._types[system][0].count):
                continue
            line, _, source, shown = self._configures[name]
            on = "all" if not system else "ps" if self._types[system][0].is_server else "worker"
            for role in roles_of(source, shown, on):
                if not self._found.use(role):
                    why = f"{role.name} comes to a machine once, here with the variables of its first step"
                    self._found.drop(line, f"configure {name}", why)
        for name, (line, begin, source, shown) in self._configures.items():
            if not is_roles_only(source):
                self._found.drop(line, f"configure {name}", _ROLE)
                self._found.drop(begin, shown, _ROLE)

    def _block(self, head: _RadlToken) -> None:
        name = self._word("a name").text
        if (token := self._peek()) is None or token.text != "(":
            if head.text != "system":  # a reference to what is known elsewhere
                self._found.drop(self._line(head.at), f"{head.text} {name}", self._why(head))
            return
        self._next += 1
        if (token := self._peek()) is not None and token.kind == "body":
            self._next += 1
            begin, end = token.at + len("@begin"), token.at + len(token.text) - len("@end")
            if head.text == "configure":
                texts = self._source[begin:end], self._shown[begin:end]
                self._configures[name] = (self._line(head.at), self._line(token.at), *texts)
            else:
                self._found.drop(self._line(head.at), f"{head.text} {name}", self._why(head))
                self._found.drop(self._line(token.at), self._shown[begin:end], self._why(head))
            self._sign(")")
            return
        features = self._features()
        if head.text == "system":
            self._types[name] = (MachineGroup(name, self._line(head.at)), features)
            return
        if not features:
            self._found.drop(self._line(head.at), f"{head.text} {name} ()", self._why(head))
        is_public = any(each.name == "outbound" and each.value == "yes" for each in features)
        for feature in features:
            key = "public_network" if is_public else "private_network"
            if feature.name != "provider_id" or not self._set(key, feature):
                self._found.drop(feature.line, feature.text, self._why(head, feature.name))

    @staticmethod
    def _why(head: _RadlToken, name: str = "") -> str:
        if head.text == "network":
            return _OUT if name.startswith("out") else _NETWORK
        return _ROLE if head.text == "configure" else f"a recipe has no {head.text}"

    def _deploy(self, head: _RadlToken) -> None:
        name, number = self._word("a system's name"), self._word("a number of machines")
        if not number.text.isdigit():
            raise self._wrong(number, "no number of machines")
        if name.text not in self._types:
            raise self._wrong(name, "no system of this document")
        self._types[name.text][0].count += int(number.text)
        token = self._peek()
        line = self._line(head.at)
        if token is not None and self._line(token.at) == self._line(number.at):
            self._next += 1
            self._found.cloud = token.text
            self._found.drop(
                line, f"deploy ... {token.text}", "the cloud is chosen by the provider's settings"
            )

    def _contextualize(self) -> None:
        while (token := self._peek()) is not None and token.text != "(":
            self._next += 1
            self._found.drop(
                self._line(token.at), f"contextualize {token.text}", "`timeout` of `roles` limits it"
            )
        begin = self._sign("(").at + 1
        depth, token = 1, None
        while depth:
            if (token := self._peek()) is None:
                raise UsageError(f"{self._file}: its end comes within contextualize", "A `)` is missing.")
            self._next += 1
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        assert token is not None
        inner = self._source[begin : token.at]
        found = [(int(step or 0), system, name) for system, name, step in _STEP.findall(inner)]
        self._steps += [each for each in found if each[1] in self._types]
        if not self._steps:
            self._found.drop(self._line(begin), self._shown[begin : token.at], _ORDER)

    def _features(self) -> list[_Feature]:
        """Up to the bracket that closes them."""
        found: list[_Feature] = []
        while True:
            token = self._word("a property or `)`")
            if token.text == ")":
                return found
            if token.text in ("and", "soft") or token.kind == "number":
                continue  # `soft 20 (...)` are wishes; what is in its brackets is read as the rest is
            if token.text == "(":
                found += self._features()
                continue
            sign = self._word("= or another comparison")
            if token.kind != "name" or sign.text not in _SIGNS:
                raise self._wrong(token if token.kind != "name" else sign, "no property with a comparison")
            value, end = self._value()
            text = self._shown[token.at : end]
            found.append(_Feature(token.text, sign.text, value, self._line(token.at), text))

    def _value(self) -> tuple[str, int]:
        token = self._word("a value")
        if token.text in ("(", "["):
            depth = 1
            while depth:
                inner = self._word("`)` or `]`")
                depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(inner.text, 0) if inner.kind == "sign" else 0
                end = inner.at + len(inner.text)
            return self._source[token.at : end], end
        if token.kind == "sign":
            raise self._wrong(token, "no value")
        end = token.at + len(token.text)
        value = token.text[1:-1] if token.kind == "text" else token.text
        return value, end

    def _take(self, machine: MachineGroup, features: list[_Feature]) -> None:
        if machine.count:
            self._found.machines.append(machine)
        for feature in features:
            is_role = machine.count and feature.name == "disk.0.applications"
            if is_role and (match := _APPLICATION.search(feature.text)) is not None:
                source = re.sub(r"^git(\+https)?://", "https://", match["source"])
                name = match["name"] or source.rpartition("/")[2].removesuffix(".git")
                self._found.sources[name] = source
                continue
            key = _SETTINGS.get(feature.name)
            if machine.count and key is not None and self._set(key, feature):
                continue
            reason = "these machines are never deployed" if not machine.count else _want(machine, feature)
            if reason:
                self._found.drop(feature.line, feature.text, reason)

    def _set(self, key: str, feature: _Feature) -> bool:
        """Keep a setting of the cloud, unless a part of it is hidden."""
        return feature.value in feature.text and self._found.set(key, feature.value)

    # --- tokens ---------------------------------------------------------------------------------------------

    def _split(self) -> list[_RadlToken]:
        found, at = [], 0
        while at < len(self._source):
            match = _TOKEN.match(self._source, at)
            if match is None:
                raise self._wrong(_RadlToken("", self._source[at], at), "a sign that RADL does not have")
            if match.lastgroup != "space":
                found.append(_RadlToken(match.lastgroup or "", match[0], at))
            at = match.end()
        return found

    def _peek(self) -> _RadlToken | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _word(self, what: str) -> _RadlToken:
        token = self._peek()
        if token is None:
            raise UsageError(f"{self._file}: its end comes where {what} is wanted", "Is the file whole?")
        self._next += 1
        return token

    def _sign(self, sign: str) -> _RadlToken:
        token = self._word(f"`{sign}`")
        if token.text != sign:
            raise self._wrong(token, f"not `{sign}`")
        return token

    def _line(self, at: int) -> int:
        return self._source.count("\n", 0, at) + 1

    def _wrong(self, token: _RadlToken, what: str) -> UsageError:
        column = token.at - (self._source.rfind("\n", 0, token.at) + 1) + 1
        shown = token.text.splitlines()[0][:40] if token.text else ""
        return UsageError(
            f"{self._file}:{self._line(token.at)}:{column}: {shown!r} is {what}",
            "RADL of Infrastructure Manager and TOSCA (YAML) can be converted.",
        )


def _want(machine: MachineGroup, feature: _Feature) -> str:
    """Take a property over; why not, if it is not."""
    name, value = feature.name, feature.value.strip()
    if feature.sign not in ("=", ">=", ">") and name != "disk.0.applications":
        return f"a recipe has no upper limits ({feature.sign})"
    written: tuple[str, str] | None = None
    if name in ("cpu.count", "gpu.count") and value.isdigit() and int(value):
        written = ("cpus" if name == "cpu.count" else "gpus", str(int(value)))
    elif name in ("memory.size", "disk.0.size") and (size := size_of(value)):
        written = ("memory" if name == "memory.size" else "disk", size)
    elif name == "instance_type" and value and not set(value) & set("*?"):
        written = ("instance", json.dumps(value))
    elif name == "gpu.model" and value and not value.isdigit():
        written = ("gpu", json.dumps(value.lower()))
    elif name == "spot" and value in ("yes", "no"):
        written = ("spot", "true" if value == "yes" else "false")
    if written is not None:
        machine.want(*written, feature.line, feature.text)
        return ""
    return next((why for start, why in _REASONS if name.startswith(start)), "no key of a recipe says it")
