"""Mails by SMTP, to a server over TCP: the password over TLS only, and only to whom the certificate names."""

from __future__ import annotations

import ssl

import pytest

pytest.importorskip("aiosmtpd", reason="it is for development only")
pytest.importorskip("cryptography", reason="the extra `server` is not installed")
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from trainmaster.service.notifications.webhooks import SMTP_VARIABLE, MailServer
from trainmaster.service.self_signed import self_signed
from trainmaster.spec.errors import UsageError


class AnyPort(Controller):
    """It tries whether it answers, where it has been given a port."""

    def _trigger_server(self):
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


class Mailbox:
    """What a mail server of ours has got: mails, and who has logged in."""

    def __init__(self, certificate, *, has_passwords=True):
        self.mails, self.logins = [], []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.controller = AnyPort(
            self,
            "127.0.0.1",
            0,
            tls_context=context,
            require_starttls=True,
            auth_required=has_passwords,
            authenticator=self.login,
            ready_timeout=60.0,
        )
        self.controller.start()
        self.port = self.controller.port

    def login(self, _server, session, _envelope, _mechanism, data):
        self.logins.append((data.login, data.password, session.ssl is not None))
        return AuthResult(success=data.password == b"p@ss word", handled=False)

    async def handle_DATA(self, _server, _session, envelope):
        self.mails.append((envelope.mail_from, envelope.rcpt_tos, envelope.content.decode()))
        return "250 taken"


@pytest.fixture
def certificate(tmp_path):
    return self_signed(tmp_path, "127.0.0.1")[0]


@pytest.fixture
def mailbox(certificate):
    found = Mailbox(certificate)
    yield found
    found.controller.stop()


def server_at(port, password="p%40ss%20word", more=""):
    return MailServer.of({SMTP_VARIABLE: f"smtp://ann%40example.org:{password}@127.0.0.1:{port}{more}"})


def test_a_mail_is_sent_over_tls_with_the_password(mailbox, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server_at(mailbox.port).send("bob@example.org", "r-1: ended", "r-1: ended: fine", "msg_1")
    assert mailbox.logins == [(b"ann@example.org", b"p@ss word", True)]
    ((sender, receivers, text),) = mailbox.mails
    assert (sender, receivers) == ("ann@example.org", ["bob@example.org"])
    for line in ("Subject: r-1: ended", "From: ann@example.org", "Message-ID: <msg_1@trainmaster>"):
        assert line in text
    with pytest.raises(OSError, match="535"):
        server_at(mailbox.port, "wrong").send("bob@example.org", "s", "t", "msg_2")


def test_a_mail_server_that_nobody_vouches_for_is_told_no_password(mailbox):
    with pytest.raises(ssl.SSLCertVerificationError):
        server_at(mailbox.port).send("bob@example.org", "s", "t", "msg_1")
    assert (mailbox.logins, mailbox.mails) == ([], [])


def test_a_mail_server_without_passwords_gets_its_mails_over_tls_where_it_wants_them_so(certificate):
    relay = Mailbox(certificate, has_passwords=False)
    url = f"smtp://127.0.0.1:{relay.port}?from=lab%40example.org"
    MailServer.of({SMTP_VARIABLE: url}).send("bob@example.org", "s", "t", "msg_1")
    relay.controller.stop()
    assert [(sender, whom) for sender, whom, _ in relay.mails] == [("lab@example.org", ["bob@example.org"])]


@pytest.mark.parametrize(
    ("url", "sender"),
    [
        ("smtp://mail.example.org", "trainmaster@mail.example.org"),
        ("smtps://robot:x@mail.example.org", "trainmaster@mail.example.org"),
        ("smtps://a%40b.org:x@mail.example.org", "a@b.org"),
        ("smtp://mail.example.org?from=lab%40example.org", "lab@example.org"),
    ],
)
def test_whom_mails_are_from(url, sender):
    assert MailServer.of({SMTP_VARIABLE: url}).sender == sender


@pytest.mark.parametrize("url", ["", "http://x", "smtp://", "smtp://x:port", "smtp://[x"])
def test_what_names_no_mail_server(url):
    with pytest.raises(UsageError):
        MailServer.of({SMTP_VARIABLE: url})
