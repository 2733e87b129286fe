"""`rendered`: the objects of the Helm chart in ``deploy/helm``, by the part of Helm's templates that it uses.

Helm itself is in none of the package sources that tests have. What a chart may have is in `_word`; anything
else is an error, so that the chart stays within what was tried.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

_TAG: Final = re.compile(r"(\s*)\{\{-\s*(.*?)\s*\}\}|\{\{\s*(.*?)\s*\}\}", re.DOTALL)


def values_of(chart: Path, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - as YAML has it
    """The values of a chart, with others in place of some, as ``--set`` and ``-f`` do.

    Args:
        chart: its directory.
        changes: by their first key; mappings are merged.
    """
    return _merged(_yaml().load(chart / "values.yaml"), changes)


def rendered(
    chart: Path, values: Mapping[str, Any], release: str = "trainmaster", namespace: str = "research"
) -> list[dict[str, Any]]:
    """Every object of a chart, in the order of its files.

    Args:
        chart: its directory.
        values: all that it asks for.
        release: its name.
        namespace: where it is installed.

    Raises:
        ValueError: it needs more of Helm than is here, or a value is missing.
    """
    context = {"Values": values, "Release": {"Name": release, "Namespace": namespace}}
    return [
        found
        for file in sorted((chart / "templates").glob("*.yaml"))
        for found in _yaml().load_all(_text(file.read_text(), context))
        if found
    ]


def _text(template: str, context: Mapping[str, Any]) -> str:
    """A template, rendered."""
    out, shows, at = list[str](), [True], 0
    for tag in _TAG.finditer(template):
        text, word = template[at : tag.start()], tag[2] if tag[2] is not None else tag[3]
        at = tag.end()
        if all(shows):
            out.append(text)
        if word.startswith("if "):
            shows.append(bool(_word(word[3:], context)) if all(shows) else False)
        elif word == "else":
            shows[-1] = not shows[-1]
        elif word == "end":
            shows.pop()
        elif all(shows):
            out.append(str(_word(word, context)))
    return "".join([*out, template[at:]])


def _word(word: str, context: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever it stands for
    first, *pipes = (each.strip() for each in word.split("|"))
    if found := re.fullmatch(r'required "([^"]*)" (\.\S+)', first):
        value = _word(found[2], context)
        if not value:
            raise ValueError(found[1])
    elif found := re.fullmatch(r"toYaml (\.\S+)", first):
        value = _dumped(_word(found[1], context))
    elif re.fullmatch(r"\.[A-Za-z.]+", first):
        value = context
        for key in first[1:].split("."):
            value = value[key]
    else:
        raise ValueError(f"{{{{ {word} }}}}: no part of Helm that is tried")
    for pipe in pipes:
        if pipe == "quote":
            value = json.dumps(str(value))
        elif found := re.fullmatch(r"nindent (\d+)", pipe):
            value = "".join(f"\n{' ' * int(found[1])}{line}" for line in str(value).splitlines())
        else:
            raise ValueError(f"{{{{ {word} }}}}: no part of Helm that is tried")
    return value


def _dumped(value: object) -> str:
    out = StringIO()
    yaml = _yaml()
    yaml.default_flow_style = not value
    yaml.dump(value, out)
    return out.getvalue().removesuffix("...\n").rstrip("\n")


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **dict(_changes(one, other))}


def _changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in other.items():
        both = isinstance(value, Mapping) and isinstance(one.get(key), Mapping)
        yield key, _merged(one[key], value) if both else value


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)
