"""Database URLs: what users write, and what SQLAlchemy is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from trainmaster.spec.errors import MissingPartError, UsageError

_EXAMPLES = "Write sqlite:////srv/trainmaster.db or postgresql://user:password@host/database."

# libpq's parameters. A peer that vanished without a word is noticed after half a minute, not two hours.
_POSTGRESQL = {
    "application_name": "trainmaster",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


def make_engine(text: str) -> Engine:
    """An engine that is not connected yet.

    Args:
        text: ``sqlite:///FILE``, ``postgresql://...`` or ``postgres://...``.

    Raises:
        UsageError: it is no such URL.
        MissingPartError: the driver is not installed.
    """
    url = _parsed(text)
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _created(url)
    if backend not in ("postgresql", "postgres"):
        raise UsageError(f"TRAINMASTER_DATABASE: {backend} is not supported", _EXAMPLES)
    url = _without_query_secrets(url).set(drivername="postgresql+psycopg")
    arguments = {key: value for key, value in _POSTGRESQL.items() if key not in url.query}
    try:
        return _created(url, connect_args=arguments, pool_use_lifo=True)
    except ImportError as error:
        raise MissingPartError(
            f"TRAINMASTER_DATABASE: PostgreSQL needs the driver psycopg ({error})",
            "pip install 'trainmaster[postgres]'",
        ) from error


def shown(text: str) -> str:
    """The URL without its password."""
    return _without_query_secrets(_parsed(text)).render_as_string(hide_password=True)


def _parsed(text: str) -> URL:
    with _understood():
        return sa.make_url(text)


def _created(url: URL, **options: Any) -> Engine:  # noqa: ANN401 - they go straight through
    with _understood():
        return sa.create_engine(url, **options)


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (sa.exc.ArgumentError, ValueError) as error:
        # The text is not repeated: it may hold a password.
        raise UsageError("TRAINMASTER_DATABASE: this is no database URL", _EXAMPLES) from error


def _without_query_secrets(url: URL) -> URL:
    # libpq takes `?password=`, but whatever shows a URL hides only the one before the @.
    password = url.query.get("password")
    if isinstance(password, str):
        url = url.difference_update_query(["password"]).set(password=password)
    return url
