"""`Webhooks`: whom a team has told what happens, by Standard Webhooks, Slack or e-mail; and what sends it.

`MailServer`: takes the e-mails that a server sends.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import json
import re
import secrets
import smtplib
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from trainmaster.dataclass import dataclass, field
from trainmaster.db import outbox, webhook_rows
from trainmaster.db.row_values import columns
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.notifications.webhook_targets import (
    TIMEOUT_S,
    ReceiverResponse,
    check_url,
    post,
)
from trainmaster.service.server_loops import LoopErrorLog, ServerLoop
from trainmaster.spec.addresses import named_networks
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.topics import APPROVAL_ANSWERED, APPROVAL_WANTED, TOPICS

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller

#: Names it: smtp://[USER:PASSWORD@]HOST[:PORT][?from=ADDRESS], or smtps:.
SMTP_VARIABLE: Final = "TRAINMASTER_SMTP"
_SUBJECT_LETTERS: Final = 150


@dataclass(frozen=True, slots=True)
class MailServer:
    """A server that takes e-mail by SMTP.

    With a user it is told the password over TLS only, and its certificate must be good for its name.

    Attributes:
        host: its name.
        port: 0 for the usual one.
        is_tls: from the first byte on (``smtps:``).
        sender: whom mails are from.
        user: at the server; empty for no login.
        password: of the user.
    """

    host: str
    port: int
    is_tls: bool
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> MailServer:
        """The one that `SMTP_VARIABLE` names.

        Raises:
            UsageError: it names none.
        """
        hint = f"{SMTP_VARIABLE}=smtp://USER:PASSWORD@HOST:587 has it do so."
        try:
            found = urllib.parse.urlsplit(environ.get(SMTP_VARIABLE, ""))
            host, port = found.hostname or "", found.port or 0
        except ValueError:
            raise UsageError(f"{SMTP_VARIABLE} is no URL", hint) from None
        if found.scheme not in ("smtp", "smtps") or not host:
            raise UsageError("this server sends no e-mail", hint)
        user = urllib.parse.unquote(found.username or "")
        (sender, *_) = urllib.parse.parse_qs(found.query).get("from", [""])
        sender = sender or (user if "@" in user else f"trainmaster@{host}")
        password = urllib.parse.unquote(found.password or "")
        return cls(host, port, found.scheme == "smtps", sender, user, password)

    def send(self, address: str, subject: str, text: str, name: str) -> None:
        """Send one mail.

        Args:
            address: to whom.
            subject: one line.
            text: of the mail.
            name: the same mail has the same, however often it is sent.

        Raises:
            OSError: the server cannot be reached, is not whom its certificate says, or does not take it.
        """
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = subject[:_SUBJECT_LETTERS], self.sender, address
        mail["Message-ID"] = f"<{name}@trainmaster>"
        mail.set_content(text)
        with self._connected() as server:
            if self.user:
                if not self.is_tls:
                    server.starttls(context=ssl.create_default_context())
                server.login(self.user, self.password)
            elif not self.is_tls:
                server.ehlo_or_helo_if_needed()
                if server.has_extn("starttls"):  # else in the clear: so any certificate will do
                    server.starttls()
            server.send_message(mail)

    def _connected(self) -> smtplib.SMTP:
        if self.is_tls:
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)


Kind = Literal["webhook", "slack", "email"]
KINDS: Final = get_args(Kind)
#: After each failure it is tried again, so many seconds later; a day after the event it is given up, unless
#: the server was away, so that it was not tried so often.
WAITS_S: Final = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0)
GIVE_UP_S: Final = 86_400.0
LEAST_TRIES: Final = 3
#: Waits are longer by up to this share, at random: not all come back at once.
_JITTER: Final = 0.1
#: A sender has so long, before another one may.
CLAIM_S: Final = 60.0
#: After a rotation the secret before is used, too, for so long.
ROTATION_S: Final = 86_400.0
LOOK_S: Final = 1.0
_AT_ONCE: Final = 8
MOST_HOOKS: Final = 20
_ADDRESS: Final = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")
SHOWN: Final = 50


def next_wait_s(tries: int, age_s: float, retry_after_s: float = 0.0, jitter: float = 0.0) -> float | None:
    """How long to wait after a failure; None to give up.

    Args:
        tries: how often it was tried.
        age_s: how long ago the event was.
        retry_after_s: what the receiver asks for.
        jitter: from 0 to 1.

    >>> [next_wait_s(tries, 0.0) for tries in (1, 2, 3)], next_wait_s(1, 0.0, 60.0), next_wait_s(9, 86_400.0)
    ([5.0, 30.0, 120.0], 60.0, None)
    """
    left_s = GIVE_UP_S - age_s
    if left_s <= 0 and tries >= LEAST_TRIES:
        return None
    wait_s = WAITS_S[min(tries, len(WAITS_S)) - 1] * (1 + _JITTER * jitter)
    return min(max(wait_s, retry_after_s), left_s if left_s > 0 else GIVE_UP_S)


def signature(secret: str, name: str, at: int, body: bytes) -> str:
    """Of a message, as Standard Webhooks has it: ``v1,`` and HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    told = f"{name}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, told, hashlib.sha256).digest()).decode()


class Webhooks(ServerLoop):
    """The webhooks of a home's teams, and what sends to them.

    Args:
        service: of the home.
        environ: of the server.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        super().__init__("webhooks", LOOK_S, threads=_AT_ONCE)
        self._service = service
        self._environ = environ
        self._busy: set[str] = set()
        self._deliveries = LoopErrorLog("deliveries of webhooks")

    # --- whom ---------------------------------------------------------------------------------------

    def create(self, caller: Caller, kind: str, target: str, topics: Sequence[str] = ()) -> dict[str, Any]:
        """Have somebody told; the answer's ``secret`` is shown this once.

        Args:
            caller: for whose team; it may `manage`.
            kind: of `KINDS`.
            target: a URL; of e-mail an address.
            topics: of `TOPICS`; all without.

        Raises:
            UsageError: something is wrong with them, or there are too many.
        """
        caller.need("manage")
        unknown = [topic for topic in topics if topic not in TOPICS]
        if unknown or kind not in KINDS:
            raise UsageError(
                f"{', '.join(unknown) or kind}: nothing of that name",
                f"Topics: {', '.join(TOPICS)}. Kinds: {', '.join(KINDS)}.",
            )
        if kind == "email":
            if not _ADDRESS.fullmatch(target):
                raise UsageError(f"{target[:200]!r} is no address", "Write one such as ann@example.org.")
            MailServer.of(self._environ)
        else:
            check_url(target, named_networks(self._environ))
        team = caller.team or ""
        database = self._service.database
        if len(database.read(webhook_rows.hooks_query(team))) >= MOST_HOOKS:
            raise UsageError(f"there are {MOST_HOOKS} already", "Remove one first.")
        name, secret = f"hook-{secrets.token_hex(6)}", new_secret()
        row = {
            "id": name,
            "team": team,
            "kind": kind,
            "target": target,
            "topics": json.dumps(list(topics) or list(TOPICS)),
            "secrets": self._seal(name, [[secret, None]]),
            "created_at": self._service.database.clock_s(),
        }
        webhook_rows.add_hook(database, row)
        found = self.show(caller, name)
        return {**found, "secret": secret} if kind == "webhook" else found

    def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """Those that a caller sees."""
        rows = self._service.database.read(webhook_rows.hooks_query(None))
        return [_shown(row) for row in rows if caller.sees(row["team"] or None)]

    def show(self, caller: Caller, name: str) -> dict[str, Any]:
        """One of them.

        Raises:
            NotFoundError: it is not there, or not the caller's.
        """
        return _shown(self._row(caller, name))

    def remove(self, caller: Caller, name: str) -> None:
        """Tell no more."""
        caller.need("manage")
        webhook_rows.remove_hook(self._service.database, self._row(caller, name)["id"])

    def rotate(self, caller: Caller, name: str) -> dict[str, Any]:
        """A new ``secret``, shown this once; the one before signs, too, for a day."""
        caller.need("manage")
        row, now = self._row(caller, name), self._service.database.clock_s()
        secret, (before, *_) = new_secret(), self._secrets(row)
        sealed = self._seal(name, [[secret, None], [before[0], now + ROTATION_S]])
        webhook_rows.change_hook(self._service.database, name, {"secrets": sealed})
        return {**_shown(row), "secret": secret}

    def enable(self, caller: Caller, name: str) -> dict[str, Any]:
        """Tell again, after it was disabled."""
        caller.need("manage")
        self._row(caller, name)
        webhook_rows.change_hook(self._service.database, name, {"disabled_at": None, "disabled_why": ""})
        return self.show(caller, name)

    def test(self, caller: Caller, name: str) -> None:
        """Send something, to see whether it arrives."""
        caller.need("manage")
        row = self._row(caller, name)
        data = {"message": "This is a test."}
        self._service.database.write(
            lambda connection, _: outbox.insert_notice(
                connection, row["id"], "test", row["id"], data, self._service.database.clock_s()
            ),
            patient=False,
        )

    def deliveries(self, caller: Caller, name: str, limit: int = SHOWN) -> list[dict[str, Any]]:
        """What it was told, and what it is to be told: newest first."""
        row = self._row(caller, name)
        found = self._service.database.read(webhook_rows.deliveries_query(row["id"], limit))
        keys = ("id", "topic", "at", "tries", "due_at", "done_at", "status")
        return [{key: each[key] for key in keys} for each in found]

    def _row(self, caller: Caller, name: str) -> RowMapping:
        for row in self._service.database.read(webhook_rows.hooks_query(None)):
            if row["id"] == name and caller.sees(row["team"] or None):
                return row
        raise NotFoundError(f"there is no webhook {name!r}", "`GET /api/v1/webhooks` lists them.")

    # --- sending ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Begin what is due, one notice of each webhook; another server retries what is cut off by `stop`."""
        now = self._service.database.clock_s()
        for row in webhook_rows.due(self._service.database, now, [*self._busy], 100):
            if row["webhook_id"] not in self._busy:
                self._busy.add(row["webhook_id"])
                try:
                    self.submit(self._in_pool, row)
                except BaseException:  # there are too many threads
                    self._busy.discard(row["webhook_id"])
                    raise

    def _in_pool(self, row: RowMapping) -> None:
        try:
            with self._deliveries.caught():
                self.deliver(row)
        finally:
            self._busy.discard(row["webhook_id"])

    def deliver(self, row: RowMapping, now: float | None = None) -> None:
        """Send a notice that is due, unless another server does."""
        now = self._service.database.clock_s() if now is None else now
        if not webhook_rows.claim(self._service.database, row, now + CLAIM_S):
            return
        try:
            answer = self._send(row, now)
        except TrainmasterError as error:  # its secret cannot be opened, or e-mail is not set up any more
            answer = ReceiverResponse(0, str(error.args[0]))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown, and tried again
            answer = ReceiverResponse(0, f"{type(error).__name__}: {error}"[:200])
        wait_s = None
        if answer.trouble:
            wait_s = next_wait_s(
                row["tries"] + 1, now - row["at"], answer.retry_after_s, secrets.randbelow(1000) / 1000
            )
        webhook_rows.end(
            self._service.database,
            row,
            answer.trouble or (f"HTTP {answer.status}" if answer.status else "sent"),
            now,
            None if wait_s is None else now + wait_s,
            given_up=bool(answer.trouble) and wait_s is None,
        )

    def _send(self, row: RowMapping, now: float) -> ReceiverResponse:
        body = row["body"].encode()
        if row["kind"] == "email":
            return self._mail(row["target"], json.loads(body))
        headers = {"content-type": "application/cloudevents+json", "user-agent": "trainmaster"}
        if row["kind"] == "slack":
            headers["content-type"] = "application/json"
            text = html.escape(_words(json.loads(body)), quote=False)  # against <!channel>
            body = json.dumps({"text": text}).encode()
        else:
            known = [secret for secret, until in self._secrets(row) if until is None or until > now]
            signed = " ".join(signature(secret, row["id"], int(now), body) for secret in known)
            headers |= {
                "webhook-id": row["id"], "webhook-timestamp": str(int(now)), "webhook-signature": signed
            }  # fmt: skip
        return post(row["target"], body, headers, named_networks(self._environ))

    def _mail(self, address: str, event: Mapping[str, Any]) -> ReceiverResponse:
        text = _words(event)
        MailServer.of(self._environ).send(address, text.splitlines()[0], text, str(event["id"]))
        return ReceiverResponse(0)

    # --- secrets ------------------------------------------------------------------------------------

    def _key(self) -> SealingKey:
        return SealingKey.of(self._service.home.root, self._environ)

    def _seal(self, hook: str, known: Sequence[Sequence[object]]) -> bytes:
        return self._key().seal(json.dumps(known).encode(), f"webhook/{hook}")

    def _secrets(self, row: RowMapping) -> list[tuple[str, float | None]]:
        hook = row["webhook_id"] if "webhook_id" in row else row["id"]
        opened = json.loads(self._key().open(row["secrets"], f"webhook/{hook}"))
        return [(secret, until) for secret, until in opened]


def new_secret() -> str:
    """As Standard Webhooks has them."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _words(event: Mapping[str, Any]) -> str:
    """For people."""
    data = event["data"]
    topic = str(event["type"]).removeprefix("trainmaster.")
    reason, message = str(data.get("reason") or ""), str(data.get("message") or "")
    is_said = message.upper().startswith(reason.replace("_", " "))  # "DENIED", "denied by ann: no"
    what = message if is_said else f"{reason} {message}".strip()
    about = f"{TOPICS.get(topic, '')}{': ' if topic in TOPICS and what else ''}"
    if topic in {APPROVAL_WANTED, APPROVAL_ANSWERED}:  # the message says it, of an experiment
        about = f"{data['experiment']} " if topic == APPROVAL_WANTED else ""
    return f"{event['subject']}: {about}{what}".replace("\r", " ")


def _shown(row: RowMapping) -> dict[str, Any]:
    return {
        "id": row["id"],
        "team": row["team"] or None,
        **columns(row, "kind", "target"),
        "topics": json.loads(row["topics"]),
        **columns(row, "created_at", "disabled_at", "disabled_why"),
    }
