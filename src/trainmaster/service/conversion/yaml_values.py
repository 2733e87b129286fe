"""`Section`: a mapping of a YAML file, of which what is not asked for is told. Pure."""

from __future__ import annotations

import re

from trainmaster.service.conversion.draft import Draft
from trainmaster.service.conversion.job import ForeignJob
from trainmaster.spec.labels import key_problem, value_problem
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.units import parse_duration

_BUCKET = re.compile(r"(?:s3|gs|az|r2|cos|oci|nebius|https?)://")
_SECRET = re.compile(r"(?i)secret|password|passwd|token(?!i[sz])|api_?key|access_key|private_key|_key$")
_FILE = re.compile(r"\.(?!git$)[A-Za-z0-9]{1,6}$")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")

#: What `serve.hang` is if a recipe does not say it.
_HANG_S = 30.0

#: Files of keys.
PRIVATE = re.compile(r"\.(?:ssh|aws|netrc|config/gcloud|kube|azure)\b|id_rsa|credentials")
#: What says how many replicas there are.
SCALES = "`replicas: {min: A, max: B}` with `scale: {in_flight: N}`: by requests at once"
SPOT_OR_NOT = "`spot: true` falls back on demand"
#: What clouds and clusters are called there, and here; `local` is a Kubernetes there.
_PROVIDERS = {"k8s": "kubernetes", "ssh": "hosts"} | {
    each: each for each in ("aws", "kubernetes", "openstack", "slurm")
}
_NO_PROVIDER = "`provider: aws`, or `run --provider aws`: without, it runs on this machine"


class Section:
    """A mapping; `rest` notes what was not taken from it."""

    def __init__(self, node: YamlNode | None, lines: list[str]) -> None:
        self._node = node if node is not None and node.kind is Kind.MAPPING else None
        self.lines = lines
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._node is not None and key in self._node.entries

    def node(self, key: str) -> YamlNode | None:
        """What stands under a key, which is told by that."""
        self._taken.add(key)
        return self._node.entries.get(key) if self._node is not None else None

    def text(self, *keys: str) -> str:
        """The text of the first of these keys that has one."""
        for key in keys:
            found = self.node(key)
            if found is not None and found.kind is Kind.SCALAR and not found.is_null:
                return found.text.strip()
        return ""

    def number(self, *keys: str) -> int:
        """A whole number, the fewest of a range; 0 without."""
        return least(self.text(*keys))

    def flag(self, key: str) -> bool:
        """Whether a key says yes, however YAML lets it be written."""
        return self.text(key).lower() in ("true", "yes", "on")

    def section(self, key: str) -> Section:
        """The mapping under a key."""
        return Section(self.node(key), self.lines)

    def line(self, key: str) -> int:
        """Of a key."""
        return self._node.keys[key].line if self._node is not None and key in self._node.keys else 1

    def first_line_of(self, key: str) -> int:
        """Where the text of a key begins."""
        node = self._node.entries.get(key) if self._node is not None else None
        if node is None:
            return 1
        return node.line + int(self.lines[node.line - 1][node.column - 1 : node.column] in ("|", ">"))

    def written(self, key: str) -> str:
        """How a key and its value are written, on the key's own line."""
        return self.lines[self.line(key) - 1].strip()

    def pairs(self, key: str) -> list[tuple[str, str | None, int]]:
        """Variables, of a mapping or a list of ``NAME=VALUE``, with their lines; None: it has no value."""
        node = self.node(key)
        if node is None:
            return []
        if node.kind is Kind.MAPPING:
            return [
                (
                    name,
                    None if each.is_null or each.kind is not Kind.SCALAR else each.text,
                    node.keys[name].line,
                )
                for name, each in node.entries.items()
            ]
        parts = [(each.text.partition("="), each.line) for each in node.items]
        return [(name, value if mark else None, line) for (name, mark, value), line in parts]

    def texts(self, key: str) -> list[str]:
        """A list of texts, or the one text; of a mapping its keys."""
        node = self.node(key)
        if node is None or node.is_null:
            return []
        if node.kind is Kind.MAPPING:
            return list(node.entries)
        return [each.text for each in (node.items if node.kind is Kind.LIST else [node])]

    def rest(self, draft: Draft, reasons: dict[str, str], decisions: dict[str, str] | None = None) -> None:
        """Note every key that nothing was made of."""
        for key in self._node.entries if self._node is not None else ():
            if key in self._taken:
                continue
            if decisions and key in decisions:
                draft.decide(self.line(key), self.written(key), decisions[key])
            else:
                draft.drop(self.line(key), self.written(key), reasons.get(key, "no key of a recipe says it"))


def least(text: str) -> int:
    """The fewest of what is asked for: ``4``, ``4+``, ``4..8``.

    >>> [least(text) for text in ("4+", "1..8", "..8", "many")]
    [4, 1, 0, 0]
    """
    found = re.match(r"\d+", text.strip())
    return int(found[0]) if found else 0


def memory(text: str) -> str:
    """The least of a size, in GB if it has no unit; empty if it is none.

    >>> memory("16+"), memory("64GB..128GB"), memory("2x"), memory("1.5.2GB")
    ('16GB', '64GB', '', '')
    """
    found = re.fullmatch(
        r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]i?B?)?", text.strip().rstrip("+").partition("..")[0].strip(), re.I
    )
    if found is None or not float(found[1]):
        return ""
    unit = (found[2] or "GB").upper().replace("I", "i")
    number = found[1].removesuffix(".0")
    return f"{number}{unit if unit.endswith('B') else unit + 'B'}"


def bounds(text: str, *, size: bool = False) -> object:
    """A range as recipes have it; a number alone where it has no upper end, None where there is none.

    >>> bounds("4+"), bounds("1..8"), bounds("..8"), bounds("16GB..32GB", size=True), bounds("x")
    (4, '1..8', '1..8', '16GB..32GB', None)
    """
    low, mark, high = (part.strip() for part in text.strip().rstrip("+").partition(".."))
    if size:
        first, last = memory(low), memory(high)
        return f"{first}..{last}" if first and last and first != last else first or None
    fewest, most = least(low), least(high)
    if not mark or not most or fewest == most:
        return fewest or None
    return f"{fewest or 1}..{most}"


def put_probe(serve: dict[str, object], probe: dict[str, object]) -> None:
    """How a replica is asked: a path alone, or a request; values that are empty are not said."""
    given = {key: value for key, value in probe.items() if value not in (None, "")}
    serve["health"] = given["path"] if given.keys() == {"path"} else given
    most_s = float(str(given.get("every", "2s"))[:-1]) + float(str(given.get("timeout", "5s"))[:-1])
    if most_s >= _HANG_S:
        serve["hang"] = f"{2 * most_s:g}s"


def seconds(text: str) -> str:
    """A duration of another tool in seconds; empty if it is none.

    >>> seconds("1m30s"), seconds("15"), seconds("off")
    ('90s', '15s', '')
    """
    try:
        return f"{parse_duration(text):g}s"
    except ValueError:
        return ""


def put_variables(
    draft: Draft, keys: dict[str, object], pairs: list[tuple[str, str | None, int]], *, secret: bool = False
) -> None:
    """Share out variables among ``env`` and ``secrets``, of which only the names are copied."""
    env, secrets = dict[str, str](), list[str]()
    for name, value, line in pairs:
        if not _VARIABLE.fullmatch(name):
            draft.drop(line, name, "no name of a variable")
        elif value is None or secret or (value and _SECRET.search(name) and not value.isdecimal()):
            secrets.append(name)
            if value:
                draft.decide(line, name, "its value is not copied: export it, or `trainmaster secrets set`")
        else:
            env[name] = value
    if env:
        keys["env"] = {**(keys.get("env") or {}), **env}  # type: ignore[dict-item]
    if secrets:
        keys["secrets"] = [*(keys.get("secrets") or []), *secrets]  # type: ignore[misc]


def put_provider(draft: Draft, clouds: list[str], line: int) -> None:
    """The first of these that there is here; the others are to be decided on."""
    names = [_PROVIDERS.get(each.lower(), "") for each in dict.fromkeys(clouds)]
    known = list(dict.fromkeys(filter(None, names)))
    others = [each for each, name in zip(dict.fromkeys(clouds), names, strict=True) if not name]
    if known:
        draft.keys["provider"] = known[0]
    if len(known) > 1:
        places = ", ".join(known)
        draft.decide(line, places, f"`provider: [{places}]` takes the first that can begin")
    if others:
        why = f"`provider: im` reaches other clouds{'' if known else '; without it runs on this machine'}"
        draft.decide(line, ", ".join(others), why)
    elif not known:
        draft.decide(1, "", _NO_PROVIDER)


def put_labels(draft: Draft, section: Section, key: str) -> None:
    """Labels there are those of the run here; what cannot be one is told."""
    labels = dict[str, str]()
    for name, value, line in section.pairs(key):
        if wrong := key_problem(name) or value_problem(value or ""):
            draft.drop(line, name, wrong)
        else:
            labels[name] = value or ""
    if labels:
        draft.keys["labels"] = {**(draft.keys.get("labels") or {}), **labels}  # type: ignore[dict-item]


def put_data(
    draft: Draft, keys: dict[str, object], job: ForeignJob, source: str, place: str, line: int
) -> None:
    """Data from a URL or a directory; in the command their variable comes in the place of the path there."""
    data: dict[str, object] = dict(keys.get("data") or {})  # type: ignore[call-overload]
    if not _BUCKET.match(source) and _FILE.search(source):
        draft.decide(line, f"{place}: {source}", "a file: have it in the code, and name its path there")
        return
    name = _data_name(place, data)
    data[name] = {"url" if _BUCKET.match(source) else "dir": source.rstrip("/") or "/"}
    keys["data"] = data
    variable = f"$TRAINMASTER_DATA_{name.upper()}"
    named = re.compile(rf"(?<![\w./~-]){re.escape(place.rstrip('/'))}(?=[/\s\"':;&|)]|$)")
    job.command, count = named.subn(variable.replace("\\", ""), job.command)
    told = "the command has" if count else "write"
    draft.decide(line, place, f"{told} {variable} in its place; a script that has the path does not")


def _data_name(path: str, known: dict[str, object]) -> str:
    """A name for what is at a path that no other has yet."""
    name = re.sub(r"\W+", "_", path.rstrip("/").rpartition("/")[2]).strip("_").lower() or "data"
    name = name if name[0].isalpha() else f"d_{name}"
    base, number = name, 2
    while name in known:
        name, number = f"{base}{number}", number + 1
    return name


def put_port(
    draft: Draft, serve: dict[str, object], job: ForeignJob, port: str, replicas: int, line: int
) -> None:
    """Where replicas listen: at a port that is chosen for each, if the command names the one there."""
    named = re.compile(rf"(?<![\w.]){port}\b")
    if port.isdecimal() and named.search(job.command):
        job.command = named.sub("{{port}}", job.command)
    elif port.isdecimal():
        serve["port"] = int(port)
        if replicas > 1:
            draft.decide(
                line, f"{replicas} replicas", f"listen at {{{{port}}}} in place of {port} for more than one"
            )
            replicas = 1
    if replicas > 1:
        serve["replicas"] = replicas


def one_or_all(values: list[str]) -> object:
    """A value alone, or the list of several."""
    return values[0] if len(values) == 1 else values
