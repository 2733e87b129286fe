"""What a role of Ansible consists of, what it depends on, and which roles a requirements.yml names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.plain_json import parsed_yaml
from trainmaster.spec.roles import secret_of

_MAIN: Final = ("main.yml", "main.yaml", "main.json", "main")
_YAML: Final = (".yml", ".yaml")
#: Folders of a role whose files are copied as they are.
_VERBATIM: Final = ("files", "__pycache__")
#: In it ansible-galaxy says when it has installed a role.
_INSTALLED: Final = ".galaxy_install_info"
#: What looks at other machines than the one that the role is for; `groups:` is an argument of modules.
_PEERS: Final = re.compile(
    r"\b(?:hostvars|play_hosts|ansible_play_\w+|inventory_hostnames|trainmaster_members|groups(?!\s*:|\w))\b"
)


@dataclass(frozen=True, slots=True)
class RoleContent:
    """A role with the roles that it names.

    Attributes:
        digest: of all their files: paths, contents, and who may run them.
        text: of those that Ansible reads.
    """

    digest: str
    text: str

    @property
    def uses_peers(self) -> bool:
        """Whether it may do something else when the other machines are others."""
        return _PEERS.search(self.text) is not None

    def digest_with(
        self, peers: object, variables: Mapping[str, str], given: Mapping[str, Any] | None = None
    ) -> str:
        """A hash that changes when a machine has to get the role again.

        Args:
            peers: all machines of the gang, as JSON; it counts for a role that looks at them.
            variables: of its tasks; those count that it names.
            given: its own variables, with what their secrets are.
        """
        named = {name: value for name, value in variables.items() if _names(self.text, name)}
        whole = [self.digest, peers if self.uses_peers else None, named]
        if given:  # else machines that have it would get it again
            secrets = {name: variables.get(name) for name in map(secret_of, given.values()) if name}
            whole += [dict(given), secrets]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def read_role(directory: Path, roles_path: Iterable[Path]) -> RoleContent:
    """Read a role, and those beside it that it depends on or includes.

    Args:
        directory: of the role.
        roles_path: folders in which roles are found by their names.
    """
    known = {
        path.name: path
        for folder in roles_path
        for path in sorted(folder.iterdir() if folder.is_dir() else ())
        if path.is_dir() and _main(path) is not None
    }
    digests, texts, wanted = [], [], [directory]
    for place in wanted:  # it grows while we go
        digest, text = _read(place)
        digests.append(digest)
        texts.append(text)
        wanted += [path for name, path in known.items() if path not in wanted and _names(text, name)]
    return RoleContent(" ".join(digests), "\n".join(texts))


def _read(directory: Path) -> tuple[str, str]:
    digest, texts = hashlib.sha256(), []
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.name != _INSTALLED:
            mode = "x" if path.stat().st_mode & 0o100 else "-"
            content = path.read_bytes()
            inner = hashlib.sha256(content).hexdigest()
            digest.update(f"{path.relative_to(directory)}\0{mode}\0{inner}\n".encode())
            if path.relative_to(directory).parts[0] not in _VERBATIM:
                texts.append(content.decode(errors="replace"))
    return digest.hexdigest(), "\n".join(texts)


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


def _main(directory: Path) -> Path | None:
    """The file with which a role begins."""
    places = (directory / part / name for part in ("tasks", "meta") for name in _MAIN)
    return next((place for place in places if place.is_file()), None)


def require_role(directory: Path, shown: str) -> Path:
    """A role's directory.

    Raises:
        UsageError: it is none, or a file of it is no YAML.
    """
    if not directory.is_dir():
        raise UsageError(
            f"roles: there is no directory {shown} in the code", "A path begins at the code's top."
        )
    if _main(directory) is None:
        raise UsageError(
            f"roles: {shown} is no role: it has no tasks/main.yml", "Name the role's own directory."
        )
    for part in ("tasks", "handlers", "defaults", "vars", "meta"):
        for path in sorted((directory / part).rglob("*")):
            if path.suffix in _YAML and path.is_file():
                _require_yaml(path, f"{shown}/{path.relative_to(directory)}")
    return directory


def require_variables(directory: Path, shown: str, given: Mapping[str, Any]) -> None:
    """Refuse a role without a variable that its `meta/argument_specs.yml` requires, if it has one.

    Raises:
        UsageError: naming the variables.
    """
    found = _load(directory, "meta", ("argument_specs.yml", "argument_specs.yaml"))
    main = found.get("argument_specs", {}).get("main", {})
    options = main.get("options", {}) if isinstance(main, dict) else {}
    options = options if isinstance(options, dict) else {}
    known = {*given, *_load(directory, "defaults", _MAIN), *_load(directory, "vars", _MAIN)}
    missing = [
        name
        for name, option in options.items()
        if name not in known
        and isinstance(option, dict)
        and option.get("required")
        and "default" not in option
    ]
    if missing:
        example = f"{{role: {shown}, vars: {{{missing[0]}: ...}}}}"
        raise UsageError(f"roles: {shown} needs {', '.join(missing)}", f"Give it under `roles`: {example}.")


def _load(directory: Path, part: str, names: Iterable[str]) -> dict[str, Any]:
    """A file of a role as plain values; empty if there is none, or if it has tags of Ansible's own."""
    for path in (directory / part / name for name in names):
        try:
            found = parsed_yaml(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _require_yaml(path: Path, shown: str) -> None:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    hint = "Mend the file, and run it again."
    try:
        with fails_as(f"roles: {shown} cannot be read", hint):
            text = path.read_text(encoding="utf-8")
        if not text.startswith("$ANSIBLE_VAULT;"):
            for _ in YAML(typ="safe", pure=True).parse(text):  # tags of Ansible's own are no errors
                pass
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(f"roles: {shown}{line}: this is no YAML: {error.problem}", hint) from None
    except YAMLError as error:
        raise UsageError(f"roles: {shown}: this is no YAML: {str(error).splitlines()[0]}", hint) from None


def required_names(document: object, shown: str) -> tuple[list[str], bool]:
    """Names of the roles that a requirements.yml asks for, and whether it asks for collections.

    Args:
        document: as it was read.
        shown: the file's name, for messages.

    Raises:
        UsageError: it is no such file.
    """
    roles: Any = document
    collections: Any = None
    if isinstance(document, dict):
        roles, collections = document.get("roles") or [], document.get("collections")
    if not isinstance(roles, list):
        raise UsageError(f"roles: {shown} is no list of roles", "See `ansible-galaxy role install --help`.")
    return [_name(entry, shown) for entry in roles], bool(collections)


def _name(entry: object, shown: str) -> str:
    if isinstance(entry, str):
        entry = {"src": entry}
    if isinstance(entry, dict):
        if isinstance(name := entry.get("name"), str) and _is_plain(name):
            return name
        source = entry.get("src") or entry.get("role")
        if isinstance(source, str) and source:
            place = source.partition(",")[0].rstrip("/")
            name = place.rpartition("/")[2] if "/" in place else place
            for suffix in (".git", ".tar.gz"):
                name = name.removesuffix(suffix)
            if _is_plain(name):
                return name
    raise UsageError(f"roles: {shown}: {entry!r} names no role", "Write {name: NAME, src: URL, version: V}.")


def _is_plain(name: str) -> bool:
    return bool(name) and "/" not in name and not name.startswith((".", "~")) and "{{" not in name
