"""`MailServer`: takes the e-mails that a server sends."""

from __future__ import annotations

import smtplib
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Final

from trainmaster.service.notifications.webhook_targets import TIMEOUT_S
from trainmaster.spec.errors import UsageError

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
            server.send_message(mail)

    def _connected(self) -> smtplib.SMTP:
        if self.is_tls:
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)
