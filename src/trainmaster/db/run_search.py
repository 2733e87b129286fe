"""Conditions on runs (`trainmaster.spec.where`) in SQL, of SQLite and of PostgreSQL.

Metrics, parameters and labels are JSON in text columns. What is not there is NULL, with which SQL compares as
the language promises: such a comparison is neither true nor false. A condition on metrics or parameters holds
if one task of the run has them all so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement

from trainmaster.db import tables as t
from trainmaster.spec.where import Both, Comparison, Has, Not, Where

Condition = sa.ColumnElement[Any]
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_RUN: Final = t.run.c
_TEXTS: Final = {
    "name": _RUN.name, "run": _RUN.id, "provider": _RUN.provider, "owner": _RUN.submitted_by,
    "team": _RUN.team, "note": _RUN.note,
}  # fmt: skip


class JsonNumber(FunctionElement[float]):
    """The number that a JSON text has under a key; else NULL."""

    type = sa.Float()
    inherit_cache = True


class JsonText(FunctionElement[str]):
    """The text, or true or false, that a JSON text has under a key; else NULL."""

    type = sa.Text()
    inherit_cache = True


def _parts(element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> list[str]:  # noqa: ANN401
    return [compiler.process(clause, **options) for clause in element.clauses]


def _in_sqlite(column: str, name: str, kinds: str, value: str) -> str:
    """What SQLite finds under a key; a path of its own can say neither quotes nor what JSON escapes.

    Tasks call their metrics as they like, and a path that cannot be read fails the query for all runs.
    """
    path = f"'$.\"' || {name} || '\"'"
    is_odd = f"({name} GLOB '*[^] !#-[^-~]*' OR instr({name}, char(0)))"
    of_odd = f"SELECT type AS kind, value AS found FROM json_each({column}) WHERE key = {name}"  # noqa: S608
    of_path = f"SELECT json_type({column}, {path}) AS kind, json_extract({column}, {path}) AS found"
    pick = f"SELECT {value} FROM (%s) WHERE kind IN ({kinds})"  # noqa: S608 - of our own texts and parameters
    return f"CASE WHEN {is_odd} THEN ({pick % of_odd}) ELSE ({pick % of_path}) END"


@compiles(JsonNumber, "sqlite")
def _(element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, name = _parts(element, compiler, **options)
    return _in_sqlite(column, name, "'integer', 'real'", "found")


@compiles(JsonText, "sqlite")
def _(element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, name = _parts(element, compiler, **options)
    shown = "CASE kind WHEN 'text' THEN found ELSE kind END"
    return _in_sqlite(column, name, "'text', 'true', 'false'", shown)


def _in_postgres(column: str, name: str) -> tuple[str, str]:
    """The text of what is under a key, and its kind; NULL of JSON that PostgreSQL cannot read.

    That has NUL or half a surrogate pair, as rows of older versions may, and would fail the query for all.
    """
    odd, pair = r"'\\u(0000|d[89a-f])'", r"'\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}'"
    rest = f"regexp_replace(replace({column}, '\\\\', ''), {pair}, '', 'g')"
    read = f"CAST(CASE WHEN {column} ~ {odd} AND {rest} ~ {odd} THEN NULL ELSE {column} END AS json)"
    return f"({read} ->> {name})", f"json_typeof({read} -> {name})"


@compiles(JsonNumber, "postgresql")
def _(element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, name = _parts(element, compiler, **options)
    value, kind = _in_postgres(column, name)
    return f"CASE WHEN {kind} = 'number' THEN CAST({value} AS double precision) END"


@compiles(JsonText, "postgresql")
def _(element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, name = _parts(element, compiler, **options)
    value, kind = _in_postgres(column, name)
    return f"CASE WHEN {kind} IN ('string', 'boolean') THEN {value} END"


def where_condition(where: Where, now: float) -> Condition:
    """For a query of runs.

    Args:
        where: the condition.
        now: Unix seconds, for the age of runs.
    """
    if not _is_of_tasks(where):
        return _Builder(now, has_task=False).condition(where)
    mine = t.experiment.c.run_id == _RUN.id
    of_task = _Builder(now, has_task=True).condition(where)
    one = (
        sa.select(sa.literal(1)).select_from(t.experiment.join(t.task)).where(mine, of_task).correlate(t.run)
    )
    # What is true whatever its tasks say is true of a run without any.
    return sa.or_(_Builder(now, has_task=False).condition(where), one.exists())


def _is_of_tasks(where: Where) -> bool:
    if isinstance(where, Comparison):
        return where.kind not in ("field", "label")
    if isinstance(where, Not):
        return _is_of_tasks(where.part)
    return isinstance(where, Both) and any(_is_of_tasks(part) for part in where.parts)


class _Builder:
    """Of one condition. ``has_task``: a row of `task` is there; else metrics and parameters are unknown."""

    def __init__(self, now: float, *, has_task: bool) -> None:
        self._now = now
        self._has_task = has_task

    def condition(self, where: Where) -> Condition:
        if isinstance(where, Both):
            parts = [self.condition(part) for part in where.parts]
            return sa.and_(*parts) if where.word == "and" else sa.or_(*parts)
        if isinstance(where, Not):
            return sa.not_(self.condition(where.part))
        if isinstance(where, Has):
            return self._has(where)
        return self._field(where) if where.kind == "field" else self._named(where)

    def _field(self, asked: Comparison) -> Condition:
        compare, value = _COMPARE.get(asked.operator), asked.value
        if asked.name == "state":
            found: Condition = sa.or_(_RUN.state == value, sa.func.coalesce(_RUN.reason, "") == value)
            return found if asked.operator == "=" else sa.not_(found)
        if asked.name in _TEXTS:
            return _compared(_TEXTS[asked.name], asked.operator, str(value))
        assert compare is not None
        if asked.name == "cost":
            return compare(_RUN.cost_usd, value)  # type: ignore[no-any-return]
        if asked.name == "created":
            return compare(_RUN.created_at, value)  # type: ignore[no-any-return]
        return compare(self._now - _RUN.created_at, value)  # type: ignore[no-any-return]

    def _named(self, asked: Comparison) -> Condition:
        kind, name = asked.kind, asked.name
        if isinstance(asked.value, float):
            columns = [] if not self._has_task else _columns(kind)
            numbers = [JsonNumber(column, sa.literal(name)) for column in columns]
            is_so = _COMPARE[asked.operator](_first(numbers), asked.value) if numbers else None
            label = kind == "" and asked.operator in ("=", "!=")
            texts = [_compared(_label(name), asked.operator, asked.text)] if label else []
            parts = [*([] if is_so is None else [is_so]), *texts]
            return sa.or_(*parts) if parts else sa.null()
        texts = (
            [JsonText(t.task.c.parameters, sa.literal(name))] if self._has_task and kind != "label" else []
        )
        texts += [_label(name)] if kind in ("", "label") else []
        return _compared(_first(texts), asked.operator, str(asked.value)) if texts else sa.null()

    def _has(self, asked: Has) -> Condition:
        found: list[Condition] = []
        if asked.kind in ("", "label"):
            found.append(_label(asked.name).is_not(None))
        for column in _columns(asked.kind):
            name = sa.literal(asked.name)
            number, text = JsonNumber(column, name), JsonText(column, name)
            there = sa.or_(number.is_not(None), text.is_not(None))
            mine = sa.select(sa.literal(1)).select_from(t.experiment.join(t.task))
            mine = mine.where(t.experiment.c.run_id == _RUN.id, there)
            found.append(mine.correlate(t.run).exists())
        return sa.or_(*found)


def _columns(kind: str) -> list[Any]:
    named = {"metric": [t.task.c.metrics], "param": [t.task.c.parameters], "label": []}
    return named.get(kind, [t.task.c.metrics, t.task.c.parameters])


def _label(name: str) -> JsonText:
    return JsonText(_RUN.labels, sa.literal(name))


def _first(values: list[Any]) -> Any:  # noqa: ANN401
    return values[0] if len(values) == 1 else sa.func.coalesce(*values)


def _compared(value: Any, sign: str, text: str) -> Condition:  # noqa: ANN401
    if sign in ("~", "!~"):
        has = sa.func.lower(value).contains(text.lower(), autoescape=True)
        return has if sign == "~" else sa.not_(has)
    return _COMPARE[sign](value, text)  # type: ignore[no-any-return]
