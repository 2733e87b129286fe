"""The text of a recipe before it is checked: its file, what it includes, what is configured, what was set."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from trainmaster.spec.errors import Mistake, RecipeError, UsageError
from trainmaster.spec.node import MAX_RECIPE_BYTES, Kind, YamlNode, changed, compose, plain_value, read_text
from trainmaster.spec.places import by_hand
from trainmaster.spec.reading import Problems
from trainmaster.spec.redaction import redacted

#: What a recipe is called by whoever names only its directory.
IN_DIRECTORY: Final = "recipe.yaml"
_EXPERIMENTS: Final = re.compile(r"experiments[\"']?[ \t]*:")
_TOO_LARGE: Final = "a recipe names code and data, it does not contain them"
_RIGHT: Final = "give the path of a recipe; `trainmaster init SCRIPT.py` writes one"


def configuration_files(directory: FilePath, environ: Mapping[str, str]) -> list[FilePath]:
    """What says what recipes in a directory leave open; the first comes first.

    The nearest ``pyproject.toml`` with a table ``tool.trainmaster``, unless it is another user's than the
    directory, and the user's own file.
    """
    found = []
    try:
        ours = {0, os.geteuid(), directory.stat().st_uid}
        for folder in (directory, *directory.parents):
            file = folder / "pyproject.toml"
            if file.is_file() and file.stat().st_uid in ours and b"tool.trainmaster" in file.read_bytes():
                found.append(file)
                break
    except OSError:
        pass  # as of a directory that is not there, or that nothing may look into
    return [*found, *own_configuration(environ)]


def own_configuration(environ: Mapping[str, str]) -> list[FilePath]:
    """The user's own file of configuration, if there is one."""
    file = user_file(environ)
    return [file] if file.is_file() else []


def user_file(environ: Mapping[str, str]) -> FilePath:
    """The user's own file of configuration, whether it is there or not."""
    base = FilePath(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return base / "trainmaster" / "config.toml"


def changed_tree(
    source: str,
    shown: str,
    directory: FilePath,
    overrides: Sequence[str],
    provider: str | None,
    defaults: Sequence[FilePath],
    *,
    includes: bool,
) -> tuple[YamlNode, dict[str, Any]]:
    """The keys of a recipe with all that changes its text; and fields of `Recipe` that note these changes.

    Args:
        source: the text.
        shown: what messages call the file.
        directory: where files that it includes are.
        overrides: texts ``path=value``.
        provider: replaces the recipe's ``provider``.
        defaults: files of configuration that say what it leaves open.
        includes: False: others may have sent it; it includes nothing.

    Raises:
        RecipeError: it is no recipe.
    """
    if not _EXPERIMENTS.search(source) and not re.search(r"^include[ \t]*:", source, re.MULTILINE):
        from trainmaster.spec.foreign import foreign_file  # recipes never need it

        if foreign := foreign_file(source):
            raise RecipeError(shown, [Mistake(1, 1, "", foreign)])
    root = compose(source, shown)
    if root.kind is not Kind.MAPPING:
        message = f"{root.describe()}; a recipe is a mapping with the key `experiments`"
        raise RecipeError(shown, [Mistake(root.line, root.column, "", message)])
    noted: dict[str, Any] = {}
    if includes and ("include" in root.entries or "env_file" in source):
        from trainmaster.spec.including import expanded

        found = expanded(root, shown, directory)
        root = found.root
        noted = {
            "included": tuple((name, redacted(text)) for name, text in found.texts.items()),
            "env_files": tuple(found.env_files),
            "notes": tuple(found.notes),
        }
    changes = [*overrides, *([] if provider is None else by_hand(root, overrides, provider))]
    if defaults:
        from trainmaster.spec.configuration import defaults_for, settings_of

        # A command of whoever has the server is not for what others send.
        settings = [each for each in settings_of(defaults) if includes or each.key != "notify"]
        said = root
        for change in changes:
            said = changed(said, change)
        named = said.entries.get("provider")
        open_keys = list(defaults_for(root, named.text if named else None, settings))
        noted["configured"] = tuple((redacted(change), said_by) for change, said_by in open_keys)
        for change, said_by in open_keys:
            root = changed(root, change, said_by)
    for change in changes:
        root = changed(root, change)
    noted |= {"source_text": redacted(source), "overrides": tuple(redacted(each) for each in changes)}
    return root, noted


def text_of(file: FilePath, shown: str) -> str:
    """What is in the file of a recipe.

    Raises:
        RecipeError: it cannot be read.
    """
    try:
        return read_text(file, shown, "recipe", _TOO_LARGE)
    except FileNotFoundError:
        raise _unreadable(shown, "no such file") from None
    except IsADirectoryError:
        raise _unreadable(shown, f"a directory without {IN_DIRECTORY}") from None
    except (OSError, ValueError) as error:
        raise _unreadable(shown, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


def too_large(shown: str) -> RecipeError:
    """Of a text that is too long for a recipe."""
    message = f"more than {MAX_RECIPE_BYTES >> 20} MiB; {_TOO_LARGE}"
    return RecipeError(shown, [Mistake(1, 1, "", message)])


def _unreadable(shown: str, found: str) -> RecipeError:
    return RecipeError(shown, [Mistake(1, 1, "", f"{found}; {_RIGHT}")])


def explain_lost_indentation(root: YamlNode, problems: Problems) -> None:
    """Say what is wrong where Hyper's Figure 1 was copied as the paper prints it."""
    experiments = root.entries.get("experiments")
    if experiments is None or not experiments.is_null or experiments.via:
        return
    following = list(root.entries)[list(root.entries).index("experiments") + 1 :]
    if following:
        key = root.keys[following[0]]
        message = (
            f"nothing below `experiments`, and '{following[0]}' at line {key.line} is not indented; "
            "indent the experiments' names below it, and their keys below them"
        )
        problems.add(root.keys["experiments"], ("experiments",), message)


def as_set(overrides: Mapping[str, object]) -> list[str]:
    """As ``--set`` takes them.

    >>> as_set({"budget.deadline": "2h", "experiments.train.retries": 5})
    ['budget.deadline="2h"', 'experiments.train.retries=5']

    Raises:
        UsageError: it is no mapping.
    """
    if not isinstance(overrides, Mapping):
        raise UsageError(
            f"overrides: {overrides!r} is no dictionary",
            'Give keys and values, such as overrides={"experiments.train.retries": 5}.',
        )
    return [
        f"{path}={json.dumps(plain_value(value), ensure_ascii=False)}" for path, value in overrides.items()
    ]
