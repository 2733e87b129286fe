"""`SavedViews`: names that a user gives to what he looks for in the list of runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import sqlalchemy as sa

from trainmaster.db import tables as t
from trainmaster.spec.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.db import Database
    from trainmaster.db.retry_policy import Try
    from trainmaster.service.users.caller import Caller

#: What a view keeps of an address; the page and its number are none of it.
KEYS: Final = ("state", "name", "owner", "team", "since", "where", "sort", "column")
MAX_QUERY: Final = 4000
#: Of one user.
MOST: Final = 50
#: What a filter of the page is in a condition.
_AS_FIELDS: Final = (
    ("state", "state", "="), ("name", "run", "~"), ("owner", "owner", "~"), ("team", "team", "="),
    ("since", "age", "<"),
)  # fmt: skip
_NAME: Final = re.compile(r"[^/\x00-\x1f]{1,60}")
_T = t.saved_view


class SavedViews:
    """Those of one caller; others do not see them.

    Args:
        database: of the home.
        caller: whose they are: of a user in all teams, of a token without one those of its team.
    """

    def __init__(self, database: Database, caller: Caller) -> None:
        self._database = database
        team = f"team:{caller.team}" if caller.team else "owner:"
        self._whose = f"user:{caller.account}" if caller.account else team

    def listed(self) -> list[dict[str, Any]]:
        """By name: ``name``, ``query``, its filters as one condition in ``where``, and ``changed_at``."""
        rows = self._database.read(sa.select(_T).where(_T.c.whose == self._whose).order_by(_T.c.name))
        return [
            {
                **{key: row[key] for key in ("name", "query", "changed_at")},
                "where": as_condition(row["query"]),
            }
            for row in rows
        ]

    def put(self, name: str, query: str) -> str:
        """Keep an address under a name; an earlier one of that name is gone.

        Args:
            name: for people.
            query: of an address such as ``state=RUNNING&sort=-cost``; what is no filter, column or order is
                left out.

        Returns:
            What is kept of it.

        Raises:
            UsageError: it is no name, or too long, or there are too many.
        """
        if not _NAME.fullmatch(name.strip()):
            raise UsageError(f"{name[:80]!r} is no name of a view", "Use 1 to 60 characters, and no slash.")
        asked = urlencode([(key, value) for key, value in parse_qsl(query) if key in KEYS])
        if len(asked) > MAX_QUERY:
            raise UsageError(f"a view of {len(asked)} characters", f"Use at most {MAX_QUERY}.")
        mine = _T.c.whose == self._whose
        values = {"query": asked, "changed_at": self._database.clock_s()}

        def write(connection: Connection, _: Try) -> bool:
            it = _T.update().where(mine, _T.c.name == name.strip()).values(**values)
            if connection.execute(it).rowcount:
                return True
            count = sa.select(sa.func.count()).select_from(_T).where(mine)
            if connection.execute(count).scalar_one() >= MOST:
                return False
            connection.execute(_T.insert().values(whose=self._whose, name=name.strip(), **values))
            return True

        if not self._database.write(write):
            raise UsageError(f"there are {MOST} views already", "Remove one first.")
        return asked

    def remove(self, name: str) -> None:
        """Forget one.

        Raises:
            NotFoundError: there is none of that name.
        """
        if not self._database.remove(_T.delete().where(_T.c.whose == self._whose, _T.c.name == name)):
            raise NotFoundError(f"there is no view {name!r}", "`trainmaster views` lists them.")


def as_condition(query: str) -> str:
    """What a view looks for, as ``status --where`` takes it; order and columns are no condition.

    >>> as_condition("state=RUNNING&where=loss+%3C+1+or+lr+%3E+2&since=7d&sort=-cost")
    'state = "RUNNING" and age < "7d" and (loss < 1 or lr > 2)'
    """
    asked = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in parse_qsl(query)}
    found = [f'{name} {sign} "{asked[key]}"' for key, name, sign in _AS_FIELDS if key in asked]
    if where := as_written(dict(parse_qsl(query)).get("where", "")):
        found.append(f"({where})" if found else where)
    return " and ".join(found)


def as_written(text: str) -> str:
    """The condition that a person writes on the page: a single word also looks for a part of the id.

    >>> as_written("digits-7f"), as_written("loss < 1")
    ('run ~ "digits-7f" or digits-7f', 'loss < 1')
    """
    return f'run ~ "{text}" or {text}' if re.fullmatch(r"[A-Za-z][\w.-]*", text.strip()) else text
