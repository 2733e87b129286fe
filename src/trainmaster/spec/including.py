"""`expanded`: a recipe with what it includes, and with the variables of its ``env_file``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.node import MAX_RECIPE_BYTES, Kind, YamlNode, compose, with_entry
from trainmaster.spec.reading import Problems
from trainmaster.spec.redaction import HIDDEN, has_secret

#: Of one recipe, all files together.
_MAX_FILES: Final = 20
KEYS: Final = ("include", "env_file")
_ASSIGNMENT: Final = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_QUOTED: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')[ \t]*(?:#.*)?""")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_SECRET_NAME: Final = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|(API|ACCESS|PRIVATE|SECRET|ACCOUNT|AUTH)_KEY"
    r"(_ID)?)(_|$)|_(PASS|PWD)$",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(
    r"(sk-|gh[pousr]_|github_pat_|hf_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|eyJ)[\w.-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)


@dataclass
class Expanded:
    """A recipe that needs no other file.

    Attributes:
        root: without the keys that name files.
        texts: of the files, by what messages call them; without lines that look like secrets.
        env_files: the paths of those where values of secrets may be.
        notes: for the user.
    """

    root: YamlNode
    texts: dict[str, str] = field(default_factory=dict)
    env_files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def expanded(root: YamlNode, file: str, directory: Path, known: Mapping[str, str] | None = None) -> Expanded:
    """A recipe with what it includes.

    Mappings are put together key by key; what stands in the recipe itself comes before what it includes, a
    later file before an earlier one. All else is taken as a whole, but names of `secrets` are added up;
    null takes away what is included.

    Args:
        root: of the recipe.
        file: what messages call it.
        directory: where it lies.
        known: texts that were read before; None reads them.

    Raises:
        RecipeError: a file cannot be read, or is no part of a recipe.
    """
    found = Expanded(root)
    found.root = _Inclusion(file, found, known).of(root, file, directory, ())
    return found


class _Inclusion:
    """Reads the files of one recipe. One use."""

    def __init__(self, recipe: str, found: Expanded, known: Mapping[str, str] | None) -> None:
        self._recipe = recipe
        self._found = found
        self._known = known
        self._texts: dict[Path, str] = {}

    def of(self, root: YamlNode, file: str, directory: Path, above: tuple[str, ...]) -> YamlNode:
        own = self._with_variables(root, file, directory, ())
        experiments = own.entries.get("experiments")
        if experiments is not None and experiments.kind is Kind.MAPPING:
            for name, each in experiments.entries.items():
                if "env_file" in each.entries:
                    each = self._with_variables(each, file, directory, ("experiments", name))
                    experiments = with_entry(experiments, name, each)
            own = with_entry(own, "experiments", experiments)
        base: YamlNode | None = None
        for node in self._named(own, "include", ()):
            shown, path = _place(node, file, directory)
            if shown in (*above, file):
                raise self._refused(node, ("include",), f"{shown} includes itself; take one of them out")
            part = compose(self._text(node, shown, path, "include"), shown)
            if part.kind is not Kind.MAPPING:
                raise self._refused(
                    node, ("include",), f"{shown} is {part.describe()}; a part of a recipe is a mapping"
                )
            part = self.of(_standing_in(part, shown), shown, path.parent, (*above, file))
            base = part if base is None else _merged(base, part)
        own = _without(own, "include")
        return own if base is None else _merged(base, own)

    def _with_variables(
        self, owner: YamlNode, file: str, directory: Path, where: tuple[str, ...]
    ) -> YamlNode:
        """The owner of an ``env_file`` with its variables; what looks secret is among its ``secrets``."""
        files = list(self._named(owner, "env_file", where))
        env = owner.entries.get("env") or YamlNode(Kind.MAPPING, owner.line, owner.column, file=owner.file)
        secrets = owner.entries.get("secrets") or YamlNode(
            Kind.LIST, owner.line, owner.column, file=owner.file
        )
        if not files or env.kind is not Kind.MAPPING or secrets.kind is not Kind.LIST:
            return _without(owner, "env_file")
        given, named = set(env.entries), {each.text for each in secrets.items}
        for node in files:
            shown, path = _place(node, file, directory)
            text = self._text(node, shown, path, "env_file")
            try:
                lines = list(dotenv(text))
            except UsageError as error:
                raise self._refused(node, (*where, "env_file"), f"{shown}:{error.args[0]}") from None
            hidden = {name for name, (_, value) in lines if name in named or looks_secret(name, value)}
            apart = []
            for name, (line, value) in dict(lines).items():
                at = YamlNode(Kind.SCALAR, line, 1, text=name, file=shown)
                if name in given or name in named:
                    continue
                if name in hidden:
                    apart.append(name)
                    secrets = replace(secrets, items=[*secrets.items, at])
                else:
                    variable = replace(at, text=value)
                    env = replace(env, entries={**env.entries, name: variable}, keys={**env.keys, name: at})
            if self._known is None and hidden:
                self._found.env_files.append(os.fspath(path.absolute()))
                self._found.texts[shown] = _without_values(text, hidden)
            if apart:
                self._found.notes.append(
                    f"{shown}: {', '.join(apart)} look{'s' * (len(apart) == 1)} like a secret: taken as "
                    "`secrets`; no value is written down, and the file is not sent"
                )
        owner = with_entry(owner, "env", env) if env.entries else owner
        owner = with_entry(owner, "secrets", secrets) if secrets.items else owner
        return _without(owner, "env_file")

    def _named(self, owner: YamlNode, key: str, where: tuple[str, ...]) -> Iterator[YamlNode]:
        """The names of files at a key."""
        node = owner.entries.get(key)
        for each in [] if node is None else node.items if node.kind is Kind.LIST else [node]:
            if each.kind is not Kind.SCALAR or each.is_null or not each.text.strip():
                raise self._refused(
                    each, (*where, key), f"{each.describe()}; write a file's path, or a list of them"
                )
            yield each

    def _text(self, node: YamlNode, shown: str, path: Path, key: str) -> str:
        if self._known is not None:
            return self._known.get(shown, "{}" if key == "include" else "")
        if path in self._texts:
            return self._texts[path]
        if len(self._texts) == _MAX_FILES:
            raise self._refused(node, (key,), f"more than {_MAX_FILES} files; write them together")
        right = "a path begins at the folder of the file that names it"
        try:
            with path.open("rb") as stream:
                data = stream.read(MAX_RECIPE_BYTES + 1)
            if len(data) > MAX_RECIPE_BYTES:
                raise self._refused(
                    node, (key,), f"{shown} has more than {MAX_RECIPE_BYTES >> 20} MiB; write less"
                )
            text = data.decode("utf-8-sig")
        except FileNotFoundError:
            raise self._refused(node, (key,), f"there is no file {shown}; {right}") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise self._refused(node, (key,), f"{shown} cannot be read ({why}); {right}") from None
        self._texts[path] = self._found.texts[shown] = text
        return text

    def _refused(self, node: YamlNode, path: tuple[str, ...], message: str) -> RecipeError:
        problems = Problems()
        problems.add(node, path, message)
        return RecipeError(self._recipe, problems.in_order())


def dotenv(text: str) -> Iterator[tuple[str, tuple[int, str]]]:
    r"""Variables of a file of lines ``NAME=VALUE``, with their lines; nothing in values is filled in.

    >>> list(dotenv('# a\nexport A="x y" # z\nB=1 # one\nC=\n'))
    [('A', (2, 'x y')), ('B', (3, '1')), ('C', (4, ''))]

    Raises:
        UsageError: a line is none; its text, which may be secret, is not repeated.
    """
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is None:
            raise UsageError(f"{number}: no line NAME=VALUE; write such lines, and # before comments")
        name, value = assignment[1], assignment[2]
        if value[:1] in ("'", '"') and value:
            quoted = _QUOTED.fullmatch(value)
            if quoted is None:
                raise UsageError(
                    f"{number}: the quote of {name} does not end on its line; write it on one line"
                )
            inner = quoted[1][1:-1]
            if value[0] == '"':
                inner = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner)
            value = inner
        else:
            value = re.split(r"(?:^|[ \t])#", value, maxsplit=1)[0].strip()
        yield name, (number, value)


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable should not be written down.

    >>> [looks_secret(n, "1") for n in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "DB_PASS", "MAX_TOKENS", "PWD")]
    [True, True, True, False, False]
    >>> looks_secret("X", "postgres://me:pw@db/x"), looks_secret("X", "https://example.org")
    (True, False)
    """
    return (
        bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)) or value == HIDDEN or has_secret(value)
    )


def _without_values(text: str, names: Collection[str]) -> str:
    """The text of an env file without comments and without values of some variables; lines stay."""
    lines = (_ASSIGNMENT.fullmatch(line.strip()) for line in text.splitlines())
    return "\n".join(
        "" if found is None else f"{found[1]}={HIDDEN}" if found[1] in names else found[0] for found in lines
    )


def _place(node: YamlNode, file: str, directory: Path) -> tuple[str, Path]:
    """What messages call a file, and where it is."""
    name = Path(node.text.strip()).expanduser()
    beside = Path("" if file.startswith("<") else file).parent
    return os.path.normpath(beside / name), directory / name


def _merged(base: YamlNode, own: YamlNode, key: str = "") -> YamlNode:
    """Two parts of recipes as one; ``own`` comes first."""
    if key == "secrets" and base.kind is own.kind is Kind.LIST:
        known = {each.text for each in own.items}
        return replace(own, items=[*(each for each in base.items if each.text not in known), *own.items])
    if not base.kind is own.kind is Kind.MAPPING:
        return own
    entries, keys = dict(base.entries), dict(base.keys)
    for name, child in own.entries.items():
        before = entries.get(name)
        if before is not None and child.is_null and not before.is_null:
            del entries[name], keys[name]
            continue
        entries[name] = child if before is None else _merged(before, child, name)
        keys[name] = own.keys[name]
    return replace(own, entries=entries, keys=keys)


def _standing_in(node: YamlNode, file: str) -> YamlNode:
    """The same tree, of which each node says its file."""
    for each in node.walk():
        each.file = file
        for key in each.keys.values():
            key.file = file
    return node


def _without(owner: YamlNode, key: str) -> YamlNode:
    if key not in owner.entries:
        return owner
    return replace(
        owner,
        entries={name: each for name, each in owner.entries.items() if name != key},
        keys={name: each for name, each in owner.keys.items() if name != key},
    )
