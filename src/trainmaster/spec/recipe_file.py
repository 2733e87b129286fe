"""From a file and overrides to a `Recipe`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainmaster.spec.errors import Mistake, RecipeError, UsageError
from trainmaster.spec.node import MAX_RECIPE_BYTES, Kind, YamlNode, compose, nearest, place
from trainmaster.spec.reading import Problems, Refused, read_noun
from trainmaster.spec.recipe import Recipe
from trainmaster.spec.redaction import redacted

_RIGHT: Final = "give the path of a recipe, for instance examples/digits/recipe.yaml"


#: What a recipe is called by whoever names only its directory.
IN_DIRECTORY: Final = "recipe.yaml"


def read_recipe(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = (), provider: str | None = None
) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the file, or a directory with a ``recipe.yaml``.
        overrides: texts ``path=value`` as for ``--set``, such as ``experiments.train.retries=5``. The
            value is YAML; ``null`` takes the key away.
        provider: replaces the recipe's ``provider``.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: an override is wrong in itself.
    """
    file = Path(path)
    if file.is_dir() and (file / IN_DIRECTORY).is_file():
        file = file / IN_DIRECTORY
    shown = os.fspath(file)
    source = _read_text(file, shown)
    root = compose(source, shown)
    if root.kind is not Kind.MAPPING:
        message = f"{root.describe()}; a recipe is a mapping with the key `experiments`"
        raise RecipeError(shown, [Mistake(root.line, root.column, "", message)])
    for override in overrides:
        root = _override(root, override)
    if provider is not None:
        root = _override(root, f"provider={provider}", shown=f"provider={provider}")
    problems = Problems()
    _explain_lost_indentation(root, problems)
    directory = file.absolute().parent
    try:
        recipe = _read(root, problems, file.stem)
    except Refused:
        ordered = sorted(problems.mistakes, key=lambda mistake: (mistake.line, mistake.column))
        raise RecipeError(shown, ordered) from None
    return recipe.model_copy(update={"directory": directory, "source_text": redacted(source)})


def _read(root: YamlNode, problems: Problems, stem: str) -> Recipe:
    if "name" not in root.entries:
        # A file may be called anything, a run becomes a directory.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "recipe"
        root = _with(root, "name", YamlNode(Kind.SCALAR, root.line, root.column, text=name))
    if problems.mistakes:
        raise Refused
    return read_noun(Recipe, root, (), problems)


def _read_text(file: Path, shown: str) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_RECIPE_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable(shown, "no such file") from None
    except IsADirectoryError:
        raise _unreadable(shown, f"a directory without {IN_DIRECTORY}") from None
    except (OSError, ValueError) as error:
        raise _unreadable(shown, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > MAX_RECIPE_BYTES:
        message = (
            f"more than {MAX_RECIPE_BYTES >> 20} MiB; a recipe names code and data, it does not contain them"
        )
        raise RecipeError(shown, [Mistake(1, 1, "", message)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line, column = place(before, len(before))
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the recipe as UTF-8"
        raise RecipeError(shown, [Mistake(line, column, "", message)]) from None


def _unreadable(shown: str, found: str) -> RecipeError:
    return RecipeError(shown, [Mistake(1, 1, "", f"{found}; {_RIGHT}")])


def _explain_lost_indentation(root: YamlNode, problems: Problems) -> None:
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


def _override(root: YamlNode, override: str, shown: str = "") -> YamlNode:
    """A copy of the tree with a value put in or taken away."""
    path, separator, text = override.partition("=")
    flag = shown or f"--set {override}"
    if not separator or not path.strip():
        raise UsageError(f"{flag}: no path=value", "Write for instance --set experiments.train.retries=5.")
    try:
        value = compose(text, "value") if text.strip() else YamlNode(Kind.SCALAR, 1, 1, plain=True)
    except RecipeError as error:
        empty = not text.strip(" ~") or text.strip() in ("null", "Null", "NULL")
        if not empty:
            raise UsageError(
                f"{flag}: {error.mistakes[0].message}", "Quote the value as YAML asks."
            ) from None
        value = YamlNode(Kind.SCALAR, 1, 1, plain=True)
    return _put(root, path.strip(), value, flag, override, ())


def _put(
    parent: YamlNode, path: str, value: YamlNode, flag: str, via: str, above: tuple[str, ...]
) -> YamlNode:
    if parent.kind is not Kind.MAPPING:
        what = parent.describe()
        raise UsageError(
            f"{flag}: {'.'.join(above)} is {what}, there is nothing below it", "Set it as a whole."
        )
    parts = path.split(".")
    if not all(parts):
        raise UsageError(f"{flag}: an empty key in '{path}'", "Write keys with single dots between them.")
    # Experiments may have dots in their names: the longest key that exists is meant.
    taken = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in parent.entries), 1)
    key, rest = ".".join(parts[:taken]), ".".join(parts[taken:])
    child = parent.entries.get(key)
    if child is None and above == ("experiments",):
        near = nearest(key, list(parent.entries))
        hint = f"Did you mean '{near}'?" if near else f"Known: {', '.join(parent.entries)}."
        raise UsageError(f"{flag}: there is no experiment '{key}'", hint)
    at = child or parent
    if rest:
        if child is None or child.is_null:
            child = YamlNode(Kind.MAPPING, at.line, at.column, via=via)
        return _with(parent, key, _put(child, rest, value, flag, via, (*above, key)), via)
    if value.is_null:
        entries = {name: node for name, node in parent.entries.items() if name != key}
        return replace(parent, entries=entries, keys={name: parent.keys[name] for name in entries})
    return _with(parent, key, _moved(value, at, via), via)


def _with(parent: YamlNode, key: str, child: YamlNode, via: str = "") -> YamlNode:
    known = parent.keys.get(key) or YamlNode(Kind.SCALAR, child.line, child.column, text=key, via=via)
    return replace(parent, entries={**parent.entries, key: child}, keys={**parent.keys, key: known})


def _moved(node: YamlNode, at: YamlNode, via: str) -> YamlNode:
    """A copy whose mistakes are reported where it was put, and as coming from the command line."""
    return replace(
        node,
        line=at.line,
        column=at.column,
        source="",
        via=via,
        items=[_moved(item, at, via) for item in node.items],
        entries={name: _moved(child, at, via) for name, child in node.entries.items()},
        keys={name: _moved(key, at, via) for name, key in node.keys.items()},
    )
