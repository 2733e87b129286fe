"""One façade over everything a user can do; the command line, REST and the web stand on it."""

from __future__ import annotations

from trainmaster.service.service import Service, Session

__all__ = ["Service", "Session"]
