"""`Registry`: models that have names, versions and aliases; each team has its own.

In what two models differ: what they reached, and what they were made of. Pure.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import queries
from trainmaster.db import registry as rows
from trainmaster.db.registry_rows import AliasMove, AliasMovedError, NewVersionRow, RunModel
from trainmaster.db.row_values import columns
from trainmaster.service.models.model_names import find_model
from trainmaster.service.runs.lineage import lineage
from trainmaster.service.runs.run_names import OWN_AT_HOME, resolve_run
from trainmaster.service.runs.stored_recipe import recipe_texts
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.model_reference import ANY_VERSION, ModelReference, checked_alias, checked_name

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome

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


MAX_TAGS: Final = 64
MAX_TEXT: Final = 4096


class Registry:
    """The registered models of a team.

    Args:
        opened: the home.
        team: whose; None for the owner of the home.
        by: who asks: what is done is written down with this name.
        own: who has sent what are runs of who asks; see `Caller.own`.
    """

    def __init__(
        self, opened: OpenHome, team: str | None, by: str, own: Sequence[str | None] = OWN_AT_HOME
    ) -> None:
        self._opened = opened
        self._database = opened.database
        self._run_team = team
        self._team = team or ""
        self._by, self._own = by, own

    # --- looking ------------------------------------------------------------------------------------

    def models(self) -> list[dict[str, Any]]:
        """All by name: ``name``, ``description``, ``tags``, ``created_at``, ``versions``, ``aliases``."""
        aliases: dict[str, dict[str, int]] = {}
        for row in rows.aliases(self._database, self._team):
            aliases.setdefault(row["name"], {})[row["alias"]] = row["version"]
        return [
            {**_about(row), "versions": row["versions"], "aliases": aliases.get(row["name"], {})}
            for row in rows.models(self._database, self._team)
        ]

    def show(self, name: str) -> dict[str, Any]:
        """One of them.

        Returns:
            As in `models`, with ``aliases`` (each ``alias``, ``version``, ``moved_by``, ``moved_at``),
            ``versions`` (the newest first, see `version`), ``moves`` (of aliases, the newest first) and
            ``used_by`` (runs that started from a version).

        Raises:
            NotFoundError: there is none of that name.
        """
        row = rows.model(self._database, self._team, name)
        if row is None:
            raise self._unknown(name)
        aliases = rows.aliases(self._database, self._team, name)
        shown = ("alias", "version", "moved_by", "moved_at")
        moved = ("alias", "before", "version", "kind", "moved_by", "moved_at", "run_id", "experiment")
        return {
            **_about(row),
            "aliases": [{key: each[key] for key in shown} for each in aliases],
            "versions": [_version(each, aliases) for each in rows.versions(self._database, self._team, name)],
            "moves": [
                {key: each[key] for key in moved} for each in rows.moves(self._database, self._team, name)
            ],
            "used_by": [dict(each) for each in rows.users(self._database, self._team, name)],
        }

    def version(self, text: str) -> dict[str, Any]:
        """The version that a reference means.

        Returns:
            ``name``, ``version``, ``aliases``, ``model`` (``RUN/EXPERIMENT/TASK``), ``run``, ``experiment``,
            ``task``, ``uri``, ``metrics``, ``parameters``, ``tags``, ``created_by``, ``created_at``.

        Raises:
            NotFoundError: there is no such model, alias or version.
            UsageError: it is no reference.
        """
        wanted = ModelReference.parse(text)
        number = self._number(wanted)
        found = rows.versions(self._database, self._team, wanted.name, number)
        if not found:
            if rows.model(self._database, self._team, wanted.name) is None:
                raise self._unknown(wanted.name)
            raise NotFoundError(f"there is no {wanted}", _SHOWN.format(wanted.name))
        return _version(found[0], rows.aliases(self._database, self._team, wanted.name))

    def _number(self, wanted: ModelReference) -> int | None:
        """Of the version; None for the newest."""
        if wanted.alias is None:
            return wanted.version
        aliases = {
            row["alias"]: int(row["version"]) for row in rows.aliases(self._database, self._team, wanted.name)
        }
        if wanted.alias in aliases:
            return aliases[wanted.alias]
        if rows.model(self._database, self._team, wanted.name) is None:
            raise self._unknown(wanted.name)
        raise NotFoundError(f"there is no {wanted}", _closest(wanted.alias, aliases, "Its aliases"))

    def _unknown(self, name: str) -> NotFoundError:
        names = [row["name"] for row in rows.models(self._database, self._team)]
        hint = _closest(name, names, "Registered are") if names else _NONE
        return NotFoundError(f"there is no registered model {name!r}", hint)

    def made_of(self, text: str) -> dict[str, Any]:
        """The version that a reference means, with its ``lineage``: what it was made of; see `lineage`."""
        found = self.version(text)
        return {**found, "lineage": self._lineage(found)}

    def _lineage(self, version: Mapping[str, Any]) -> dict[str, Any]:
        return lineage(self._opened, version["run"], version["experiment"], version["task"])

    def diff(self, a: str, b: str) -> dict[str, Any]:
        """In what two models differ; see `model_diff.diff`.

        Args:
            a: a reference with ``@``, or a model of a run: ``RUN``, ``RUN/EXPERIMENT/TASK``.
            b: the other one, written as ``a`` is.
        """
        sides = self._described(a), self._described(b)
        texts = recipe_texts([side.pop("row") for side in sides])
        return diff(*({**side, "recipe": text} for side, text in zip(sides, texts, strict=True)))

    def _described(self, text: str) -> dict[str, Any]:
        found = self.version(text) if "@" in text else self._model(text)
        return {
            "model": text,
            "metrics": found["metrics"],
            "parameters": found["parameters"],
            "row": self._database.run_row(found["run"]),
            **self._lineage(found),
        }

    def _model(self, text: str) -> dict[str, Any]:
        """A model of a run, as `queries.models` has it."""
        named, which = text.strip("/").partition("/")[0], queries.RunFilter((self._run_team,))
        run = resolve_run(self._database, named, which, self._own)
        uri = find_model(self._database, text, run)
        row = next(row for row in queries.models(self._database, run) if row["uri"] == uri)
        return {**row, **{key: json.loads(row[key]) for key in ("metrics", "parameters")}}

    # --- changing -----------------------------------------------------------------------------------

    def register(
        self, model: str, name: str, alias: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Make a model of a run a version; one that is a version already stays that version.

        Args:
            model: ``RUN``, ``RUN/EXPERIMENT`` or ``RUN/EXPERIMENT/TASK``.
            name: of the registered model, which is made if there is none.
            alias: that is to mean it from now on.
            tags: of the version.

        Returns:
            The version, as `version` has it, and whether it is ``new``.

        Raises:
            NotFoundError: there is no such model, or it is another team's.
            UsageError: there are several models; or no such name can be.
        """
        checked_name(name)
        if alias is not None:
            checked_alias(alias)
        row = self._model(model)
        found = RunModel(row["run"], row["experiment"], row["task"], row["uri"])
        new = NewVersionRow(self._team, name, found, self._by, checked_tags(tags or {}))
        number, is_new = rows.register(self._database, new, alias, time.time())
        return {**self.version(f"{name}@{number}"), "new": is_new}

    def promote(self, text: str, alias: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        """Have an alias mean a version.

        Args:
            text: the version: ``digits@3``, or ``digits@staging``.
            alias: such as ``production``.
            expected: the version that it means now, None if there is none; `ANY_VERSION` for any.

        Returns:
            The version, as `version` has it, and whether the alias ``moved``.

        Raises:
            AliasMovedError: it means another version than was expected.
            NotFoundError: there is no such version.
        """
        checked_alias(alias)
        name, number = (found := self.version(text))["name"], found["version"]
        moved = self._move(name, AliasMove(alias, number, self._by), expected)
        return {**self.version(f"{name}@{number}"), "moved": moved}

    def rollback(self, text: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        """Have an alias mean what it meant before, as `promote` answers.

        Args:
            text: such as ``digits@production``.
            expected: the version that it means now; `ANY_VERSION` for whatever.

        Raises:
            UsageError: it meant nothing before.
            AliasMovedError: somebody moved it meanwhile.
        """
        alias = (wanted := ModelReference.parse(text)).must_alias
        present = self._number(wanted)
        if expected not in (ANY_VERSION, present):
            raise AliasMovedError(
                f"{text} means version {present}, not {expected}", "Look again, then decide."
            )
        name = wanted.name
        there = {row["version"] for row in rows.versions(self._database, self._team, name)}
        moves = rows.moves(self._database, self._team, name, alias, limit=10_000)
        target = version_before([(m["before"], m["version"], m["kind"]) for m in moves], present, there)
        if target is None:
            raise UsageError(
                f"{text} meant no version before {present} that is still there",
                f"`trainmaster models promote {name}@VERSION {alias}` names one.",
            )
        self._move(name, AliasMove(alias, target, self._by, "rollback"), present)
        return {**self.version(f"{name}@{target}"), "moved": True}

    def remove_alias(self, text: str) -> None:
        """Take an alias away; what it meant stays."""
        wanted = ModelReference.parse(text)
        alias, present = wanted.must_alias, self._number(wanted)
        self._move(wanted.name, AliasMove(alias, None, self._by, "remove"), present)

    def _move(self, name: str, move: AliasMove, expected: int | None) -> bool:
        if expected == ANY_VERSION:
            aliases = rows.aliases(self._database, self._team, name)
            expected = next((row["version"] for row in aliases if row["alias"] == move.alias), None)
        return rows.move(self._database, self._team, name, move, time.time(), expected)

    def remove(self, text: str) -> dict[str, Any]:
        """Take a version out of the registry; its number is never given again, and its run keeps the model.

        Returns:
            The version that there was.

        Raises:
            ModelInUseError: an alias means it, or a run that is not over starts from it.
            UsageError: no number is named.
        """
        wanted = ModelReference.parse(text)
        if wanted.version is None:
            raise UsageError(f"{text} names no number", f"Write such as {wanted.name}@3.")
        found = self.version(text)
        rows.remove_version(self._database, self._team, wanted.name, wanted.version)
        return found

    def describe(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Change what is said of a model; None leaves it as it is.

        Raises:
            NotFoundError: there is none of that name.
        """
        if description is not None and len(description) > MAX_TEXT:
            raise UsageError(f"a description of {len(description)} characters", f"Use at most {MAX_TEXT}.")
        said = None if tags is None else checked_tags(tags)
        if description is not None or said is not None:
            rows.describe(self._database, self._team, name, description, said)
        return self.show(name)


_SHOWN: Final = "`trainmaster models show {}` lists its versions and aliases."
_NONE: Final = "None is registered yet: `trainmaster models register RUN NAME` does it."


def version_before(
    moves: Sequence[tuple[int | None, int | None, str]], present: int | None, there: Collection[int]
) -> int | None:
    """What an alias meant before it came to mean what it means now; None if that was nothing.

    Rolled back twice it goes two versions back: moves that are rollbacks are not what is undone.

    Args:
        moves: from which version to which and how, the newest first.
        present: the version that it means now.
        there: versions that were not removed.

    >>> history = [(2, 3, "promote"), (1, 2, "promote"), (None, 1, "promote")]
    >>> version_before(history, 3, {1, 2, 3}), version_before(history, 3, {1, 3})
    (2, 1)
    >>> version_before([(3, 2, "rollback"), *history], 2, {1, 2, 3})
    1
    """
    for before, version, kind in moves:
        if version == present and kind != "rollback":
            if before is None or before in there:
                return before
            present = before
    return None


def checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags that can be kept.

    Raises:
        UsageError: there are too many, or one is too long.
    """
    if len(tags) > MAX_TAGS or any(
        not key or len(key) > MAX_TAGS * 2 or len(value) > MAX_TEXT for key, value in tags.items()
    ):
        raise UsageError(
            "these tags are too many or too long",
            f"Use at most {MAX_TAGS}; keys have up to {MAX_TAGS * 2} characters, values {MAX_TEXT}.",
        )
    return dict(tags)


def _closest(word: str, known: Collection[str], what: str) -> str:
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return (
        f"Did you mean {' or '.join(near)}?"
        if near
        else f"{what}: {', '.join(sorted(known)[:10]) or 'none'}."
    )


def _about(row: RowMapping) -> dict[str, Any]:
    return {
        **columns(row, "name", "description"),
        "tags": json.loads(row["tags"]),
        "created_at": row["created_at"],
    }


def _version(row: RowMapping, aliases: Sequence[RowMapping]) -> dict[str, Any]:
    return {
        **columns(row, "name", "version"),
        "aliases": [each["alias"] for each in aliases if each["version"] == row["version"]],
        "model": f"{row['run_id']}/{row['experiment']}/{row['task']}",
        "run": row["run_id"],
        **columns(row, "experiment", "task", "uri"),
        "metrics": json.loads(row["metrics"] or "{}"),
        "parameters": json.loads(row["parameters"] or "{}"),
        "tags": json.loads(row["tags"]),
        **columns(row, "created_by", "created_at"),
    }
