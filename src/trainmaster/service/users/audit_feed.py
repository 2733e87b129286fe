"""`AuditFeed`: sends the audit on as it grows, to files, to syslog and by https, each row at least once.

How far each receiver is, is a row in the database: it is written after the receiver has taken what was sent.
One server of a database sends to it at a time, under a lease. A receiver that is away is tried again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from trainmaster.db import Database, audit
from trainmaster.db.leases import LEASE_S, this_process
from trainmaster.service.notifications.delivery import pause_s
from trainmaster.service.notifications.webhook_targets import TIMEOUT_S, ReceiverResponse, check_url, post
from trainmaster.service.server_loops import LoopErrorLog, ServerLoop
from trainmaster.spec.errors import UsageError
from trainmaster.spec.redaction import redacted

#: Names the receivers, with spaces between them.
VARIABLE: Final = "TRAINMASTER_AUDIT_TO"
#: The header `Authorization` of what is sent by https.
AUTHORIZATION_VARIABLE: Final = "TRAINMASTER_AUDIT_AUTHORIZATION"
LOOK_S: Final = 1.0
_AT_ONCE: Final = 500
#: The owner of a server may send to his own machine and network.
_EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
#: Of facility `authpriv` (10), `notice` (5).
_PRIORITY: Final = 10 * 8 + 5
_SYSLOG: Final = "/dev/log"


class AuditFeed(ServerLoop):
    """Sends the audit of a database.

    Args:
        database: that has it.
        home: identity of the home: a file is that of one machine.
        environ: of the server.
        post_to: sends; replaced in tests.

    Raises:
        UsageError: nothing can be sent to one of them.
    """

    def __init__(
        self,
        database: Database,
        home: str,
        environ: Mapping[str, str],
        post_to: Callable[..., ReceiverResponse] = post,
    ) -> None:
        super().__init__("audit", LOOK_S, is_awaited=False)
        self._database, self._post = database, post_to
        self._authorization = environ.get(AUTHORIZATION_VARIABLE, "")
        self._targets = {
            url if urlsplit(url).scheme in ("http", "https") else f"{url} of {home}": url
            for url in environ.get(VARIABLE, "").split()
        }
        for url in self._targets.values():
            _check(url)
        self._owner = this_process()
        self._errors = {
            target: LoopErrorLog(f"audit to {redacted(url)}") for target, url in self._targets.items()
        }

    def start(self) -> None:
        """Begin; what was not taken when it stops is sent again by the server that comes next."""
        if self._targets:
            super().start()

    def turn(self) -> None:
        """Feed all of them."""
        self.feed()

    def feed(self) -> None:
        """Send what is there, to all that are not to be left alone."""
        for target, url in self._targets.items():
            with self._errors[target].caught():
                while not self._over.is_set() and self._feed(target, url):
                    pass

    # --- private ------------------------------------------------------------------------------------

    def _feed(self, target: str, url: str) -> bool:
        """Send some rows; whether to look for more at once."""
        database, now = self._database, self._database.clock_s()
        sink = audit.sink(database, target)
        if sink["try_at"] > now:
            return False
        rows = audit.following(database, sink["sent"], _AT_ONCE)
        if not rows or not audit.claim_sink(database, sink, self._owner, now, now + LEASE_S):
            return False
        before, told = audit.hash_before(database, rows[0]["id"]), []
        for row in rows:
            told.append(json.dumps({**row, "before": before}))
            before = row["hash"]
        if trouble := self._send(url, told):
            failures = sink["failures"] + 1
            again = {"failures": failures, "try_at": now + pause_s(failures), "trouble": trouble}
            audit.change_sink(database, target, self._owner, **again)
            raise UsageError(trouble, "It is tried again.")
        taken = {"sent": rows[-1]["id"], "sent_at": now, "failures": 0, "try_at": 0.0, "trouble": ""}
        return audit.change_sink(database, target, self._owner, **taken)

    def _send(self, url: str, lines: Sequence[str]) -> str:
        """What went wrong; empty when the receiver has all."""
        parts = urlsplit(url)
        try:
            if parts.scheme == "file":
                _append(Path(unquote(parts.path)), "".join(f"{line}\n" for line in lines).encode())
            elif parts.scheme == "syslog":
                _log(lines)
            else:
                headers = {"content-type": "application/x-ndjson", "user-agent": "trainmaster"}
                if self._authorization:
                    headers["authorization"] = self._authorization
                body = "".join(f"{line}\n" for line in lines).encode()
                return self._post(url, body, headers, _EVERYWHERE).trouble
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror or error}"
        return ""


def _append(path: Path, data: bytes) -> None:
    """Add lines to a file, on the disk; a line that was cut short before stays one of its own."""
    with os.fdopen(
        os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", 0
    ) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data
        while data:
            data = data[file.write(data) or 0 :]
        os.fsync(file.fileno())


def _log(lines: Sequence[str]) -> None:
    """Give lines to this machine's syslog, which waits when it cannot take them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.settimeout(TIMEOUT_S)
        log.connect(_SYSLOG)
        for line in lines:
            log.send(f"<{_PRIORITY}>trainmaster: {line}".encode())


def _check(url: str) -> None:
    parts = urlsplit(url)
    if url == "syslog:" or (parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")):
        return
    if parts.scheme not in ("http", "https"):
        raise UsageError(
            f"the audit is not sent to {url[:200]!r}",
            "Write file:///DIRECTORY/FILE, syslog: or https://HOST/PATH.",
        )
    check_url(url, _EVERYWHERE)
