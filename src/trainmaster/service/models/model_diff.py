"""In what two models differ: what they reached, and what they were made of. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

#: What is compared whole.
_SINGLE: Final = ("code", "seed")


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two models; what is the same in both is left out, but metrics are all told.

    Args:
        a: as `Registry.described` has it.
        b: the other one, as `Registry.described` has it.

    Returns:
        ``a`` and ``b`` (what they are called); ``metrics`` and ``parameters``, each a pair of values by name
        (None where there is none); ``code`` and ``seed`` as pairs, ``data`` as pairs of sources by name,
        ``environment`` as pairs of versions by package (and of ``python`` and ``platform``), and ``recipe``,
        the lines of a unified diff.
    """
    sources = [{each["name"]: each["source"] for each in side["data"]} for side in (a, b)]
    names = (str(a["model"]), str(b["model"]))
    texts = (a["recipe"].splitlines(), b["recipe"].splitlines())
    return {
        "a": names[0],
        "b": names[1],
        "metrics": _pairs(a["metrics"], b["metrics"]),
        "parameters": _different(_pairs(a["parameters"], b["parameters"])),
        **{key: [a[key], b[key]] for key in _SINGLE if a[key] != b[key]},
        "data": _different(_pairs(*sources)),
        "environment": _different(_pairs(*(_flat(side["environment"]) for side in (a, b)))),
        "recipe": list(difflib.unified_diff(*texts, *names, lineterm="")),
    }


def _flat(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    if environment is None:
        return {}
    facts = ("python", "platform", "image", "digest")
    return {**environment["packages"], **{key: environment[key] for key in facts if key in environment}}


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {key: [a.get(key), b.get(key)] for key in dict.fromkeys((*a, *b))}


def _different(pairs: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Those that are not the same twice.

    >>> _different({"lr": [0.1, 0.2], "depth": [3, 3]})
    {'lr': [0.1, 0.2]}
    """
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
