"""Tables of teams: who may do what, money, webhooks, what is sent to a server, apps and workflows."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from trainmaster.db.tables.runs import Key, metadata

team = Table(
    "team",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at", Float, nullable=False),
)

budget = Table(
    "budget",
    metadata,
    Column("team", Text, primary_key=True, doc="empty for the owner of the home, * for all together"),
    Column("monthly_usd", Float, doc="what it may spend in a calendar month (UTC); null is no limit"),
    Column("runs_at_once", Integer, doc="how many may go on at the same time; null is no limit"),
    Column("usd_per_hour", Float, doc="of all of its runs together; null is no limit"),
    Column("cpus_at_once", Integer, doc="of this machine, that all of its tasks take; null is no limit"),
)

budget_warning = Table(
    "budget_warning",
    metadata,
    Column("team", Text, primary_key=True),
    Column("month", Text, primary_key=True),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
)

admission = Table(
    "admission",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("priority", Integer, nullable=False),
    Column("most_micro_usd", BigInteger, nullable=False, doc="is set aside when its turn comes"),
    Column("usd_per_hour", Float, nullable=False, doc="what its machines cost per hour"),
    Column("asked_at", Float, nullable=False),
    Column("admitted_at", Float, doc="null while it waits"),
)

webhook = Table(
    "webhook",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, nullable=False, doc="empty for the owner of the home"),
    Column("kind", Text, nullable=False, doc="webhook, slack or email"),
    Column("target", Text, nullable=False),
    Column("topics", Text, nullable=False, doc="that it wants, as JSON"),
    Column("secrets", LargeBinary, nullable=False, doc="sealed: each with when it ends, the newest first"),
    Column("created_at", Float, nullable=False),
    Column("disabled_at", Float),
    Column("disabled_why", Text, nullable=False, server_default=""),
)
Index(None, webhook.c.team)

notice = Table(
    "notice",
    metadata,
    Column("id", Text, primary_key=True),
    Column("webhook_id", Text, ForeignKey("webhook.id"), nullable=False),
    Column("topic", Text, nullable=False),
    Column("body", Text, nullable=False, doc="a CloudEvent as JSON"),
    Column("at", Float, nullable=False, doc="when that happened"),
    Column("tries", Integer, nullable=False, server_default="0", doc="how often that was begun"),
    Column("due_at", Float, nullable=False, doc="when it is tried again"),
    Column("done_at", Float, doc="when it was taken or given up"),
    Column("status", Text, nullable=False, server_default="", doc="what came of the last try"),
)
Index(None, notice.c.webhook_id, notice.c.at)
Index(None, notice.c.done_at, notice.c.due_at)

ledger = Table(
    "ledger",
    metadata,
    Column("id", Key, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("team", Text, nullable=False, doc="empty for the owner of the home"),
    Column("kind", Text, nullable=False, doc="reserve, charge or release"),
    Column("day", Text, nullable=False, doc="UTC, such as 2026-11-22: the month is its beginning"),
    Column("micro_usd", BigInteger, nullable=False),
    Column("at", Float, nullable=False, doc="when it was changed last"),
    UniqueConstraint("run_id", "kind", "day"),
)
Index(None, ledger.c.day)

token = Table(
    "token",
    metadata,
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False, doc="SHA-256 of the token in hexadecimal: it is shown once only"),
    Column("beginning", Text, nullable=False, doc="its first characters, to tell tokens apart"),
    Column("team", Text, ForeignKey("team.name"), doc="null for the owner of the home"),
    Column("scopes", Text, nullable=False, doc="separated by spaces"),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("used_at", Float, doc="to a minute"),
    Column("revoked_at", Float),
    Column("account", Text, doc="whose: it allows no more than its role does; null for who has the machine"),
    Column("made_with", Text, doc="name of the token that it was made with: it ends with that"),
    Column("wallet", Text, doc="that its runs are paid from; tokens made with it draw on the same"),
    Column("at_most_usd", Float, doc="what all runs from that wallet may cost together"),
    UniqueConstraint("digest"),
)

account = Table(
    "account",
    metadata,
    Column("name", Text, primary_key=True, doc="never used again, so that the audit means one"),
    Column("kind", Text, nullable=False, doc="user or service"),
    Column("team", Text, ForeignKey("team.name"), doc="of a service account: whose managers keep it"),
    Column("admin_by", Text, doc="server or groups: who has made it one; null of who is none"),
    Column("issuer", Text, doc="of the single sign-on that knows it"),
    Column("subject", Text, doc="what it is called there"),
    Column("created_at", Float, nullable=False),
    Column("disabled_at", Float),
    Column("groups_until", Float, doc="so long what its groups gave holds without another login; null: on"),
    UniqueConstraint("issuer", "subject"),
)

member = Table(
    "member",
    metadata,
    Column("team", Text, ForeignKey("team.name"), primary_key=True),
    Column("account", Text, ForeignKey("account.name"), primary_key=True),
    Column("role", Text, nullable=False),
    Column("by_groups", Boolean, nullable=False, doc="single sign-on has said so, and may say otherwise"),
)
Index(None, member.c.account)

invite = Table(
    "invite",
    metadata,
    Column("digest", Text, primary_key=True, doc="SHA-256 of what its link says"),
    Column("team", Text, ForeignKey("team.name"), nullable=False),
    Column("role", Text, nullable=False),
    Column("invited_by", Text, doc="the account; null for who has the machine"),
    Column("made_with", Text, doc="name of the token that it was made with: it ends with that"),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("used_by", Text),
)
Index(None, invite.c.team)

team_secret = Table(
    "team_secret",
    metadata,
    Column("team", Text, ForeignKey("team.name"), primary_key=True),
    Column("name", Text, primary_key=True, doc="of the variable that tasks get, or login/PROVIDER"),
    Column("sealed", LargeBinary, nullable=False),
    Column("changed_by", Text, nullable=False),
    Column("changed_at", Float, nullable=False),
)

saved_view = Table(
    "saved_view",
    metadata,
    Column("whose", Text, primary_key=True, doc="user:NAME, team:NAME of a token without a user, or owner:"),
    Column("name", Text, primary_key=True),
    Column("query", Text, nullable=False, doc="of the address of the list of runs"),
    Column("changed_at", Float, nullable=False),
)

sign_in = Table(
    "sign_in",
    metadata,
    Column("digest", Text, primary_key=True, doc="SHA-256 of the cookie of the browser that has begun it"),
    Column("state", Text, nullable=False, doc="what the provider must send back"),
    Column("nonce", Text, nullable=False, doc="what its token must say"),
    Column("verifier", Text, nullable=False, doc="of PKCE"),
    Column("wanted", Text, nullable=False, doc="the page to go on with"),
    Column("expires_at", Float, nullable=False),
)

login_attempt = Table(
    "login_attempt",
    metadata,
    Column("id", Key, primary_key=True),
    Column("address", Text, nullable=False),
    Column("at", Float, nullable=False),
)
Index(None, login_attempt.c.address, login_attempt.c.at)

web_session = Table(
    "web_session",
    metadata,
    Column("digest", Text, primary_key=True, doc="SHA-256 of the cookie in hexadecimal"),
    Column("name", Text, nullable=False, doc="whose"),
    Column("team", Text, ForeignKey("team.name")),
    Column("scopes", Text, nullable=False),
    Column("token", Text, doc="name of the token that it was opened with: it ends with that"),
    Column("expires_at", Float, nullable=False),
    Column("account", Text, doc="whose: as of a token"),
    Column("created_at", Float, nullable=False, server_default="0"),
    Column("address", Text, nullable=False, server_default="", doc="from where it was opened"),
)

submission = Table(
    "submission",
    metadata,
    Column("caller", Text, primary_key=True, doc="team, or empty; keys of others are no keys of ours"),
    Column("key", Text, primary_key=True, doc="Idempotency-Key of the request"),
    Column("digest", Text, nullable=False, doc="SHA-256 of the request"),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("created_at", Float, nullable=False),
)

upload = Table(
    "upload",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, ForeignKey("team.name"), doc="whose it is; null for the owner of the home"),
    Column("name", Text, nullable=False, doc="of the file: a relative path"),
    Column("kind", Text, nullable=False, doc="code or volume"),
    Column("state", Text, nullable=False, doc="OPEN, FINISHING, DONE, FAILED or REMOVED"),
    Column("size_bytes", BigInteger, nullable=False),
    Column("received_bytes", BigInteger, nullable=False, server_default="0", doc="what the parts hold"),
    Column("result", Text, doc="of DONE what it became, of FAILED what was wrong, as JSON"),
    Column("claim", Integer, nullable=False, server_default="0", doc="grows with each that finishes it"),
    Column("claimed_until", Float, doc="by `Database.clock_s`; renewed by the server that finishes it"),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
)
Index(None, upload.c.team)

upload_part = Table(
    "upload_part",
    metadata,
    Column("upload_id", Text, ForeignKey("upload.id"), primary_key=True),
    Column("offset", BigInteger, primary_key=True, doc="of its first byte; a part is never changed"),
    Column("size_bytes", BigInteger, nullable=False),
    Column("key", Text, nullable=False, doc="its object, below the upload's"),
)

volume_content = Table(
    "volume_content",
    metadata,
    Column("id", Text, primary_key=True, doc="of the version's tables of files"),
    Column("described", Text, nullable=False, doc="columns and rows of the tables in it, as JSON"),
)

device_login = Table(
    "device_login",
    metadata,
    Column("digest", Text, primary_key=True, doc="SHA-256 of the secret of who logs in"),
    Column("user_digest", Text, nullable=False, unique=True, doc="SHA-256 of the code to be confirmed"),
    Column("client", Text, nullable=False, doc="name of who logs in, as it says itself"),
    Column("expires_at", Float, nullable=False),
    Column("confirmed", Text, doc="who has confirmed it, as JSON; null before"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Key, primary_key=True),
    Column("at", Float, nullable=False),
    Column("name", Text, nullable=False, doc="of the token or user; empty of who gave none that is valid"),
    Column("team", Text),
    Column("address", Text, nullable=False),
    Column("action", Text, nullable=False, doc="method and path"),
    Column("status", Integer, nullable=False, doc="HTTP status that it was answered with"),
    Column("token", Text, doc="name of the token that it was done with; null in a browser"),
    Column("hash", Text, nullable=False, server_default="", doc="of it and the hash of the row before"),
)
Index(None, audit.c.at)

audit_sink = Table(
    "audit_sink",
    metadata,
    Column("target", Text, primary_key=True, doc="where the audit is sent; of a file on which machine"),
    Column("sent", BigInteger, nullable=False, server_default="0", doc="id of the last row that was taken"),
    Column("sent_at", Float, doc="when"),
    Column("trouble", Text, nullable=False, server_default="", doc="why the last try has failed"),
    Column("failures", Integer, nullable=False, server_default="0", doc="of tries, one after the other"),
    Column("try_at", Float, nullable=False, server_default="0", doc="not before"),
    Column("owner", Text, doc="the process that sends, as `this_process` names it"),
    Column("expires_at", Float, doc="of its lease, by `Database.clock_s`"),
)

app = Table(
    "app",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, doc="tensorboard, notebook or port"),
    Column("team", Text, ForeignKey("team.name"), doc="whose it is; null for the owner of the home"),
    Column("opened_by", Text, nullable=False),
    Column("account", Text, doc="of who has opened it: it ends when that one leaves the team"),
    Column("runs", Text, nullable=False, doc="ids of the runs that it shows, as JSON"),
    Column("run_id", Text, ForeignKey("run.id"), doc="the run whose task it is, if it is one"),
    Column("home_id", Text, nullable=False, doc="the home on whose machine it is"),
    Column("place", Text, unique=True, doc="what is open once only; null when it is over"),
    Column("directory", Text, doc="of a notebook: where the work of its user stays"),
    Column("member", Text, doc="of `run_id`, whose `port` it is; null for the first one"),
    Column("state", Text, nullable=False, doc="WAITING, RUNNING (it answers) or DONE"),
    Column("reason", Text, doc="why it is over"),
    Column("ends", Boolean, nullable=False, server_default=false(), doc="somebody wants its end"),
    Column("port", Integer, doc="on the own address of the machine, or of that of `run_id`"),
    Column("owner", Text, doc="the process that looks after it, as `this_process` names it"),
    Column("expires_at", Float, doc="of its lease, by `Database.clock_s`"),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("ended_at", Float),
)
Index(None, app.c.team, app.c.created_at)
Index(None, app.c.home_id, app.c.state)

app_pass = Table(
    "app_pass",
    metadata,
    Column("digest", Text, primary_key=True, doc="SHA-256 of the ticket or cookie"),
    Column("app_id", Text, ForeignKey("app.id"), nullable=False),
    Column("is_ticket", Boolean, nullable=False, doc="good once: it becomes a cookie"),
    Column("expires_at", Float, nullable=False),
    Column("credential", Text, doc="SHA-256 of the session or token behind it; null for who has the machine"),
    Column("is_session", Boolean, nullable=False),
    Column("team", Text, doc="for which it was asked"),
)
Index(None, app_pass.c.app_id)

workflow = Table(
    "workflow",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, nullable=False, doc="empty for the owner of the home"),
    Column("name", Text, nullable=False, doc="of the recipe"),
    Column("request", Text, nullable=False, doc="what is submitted at each start, as JSON"),
    Column("concurrency", Text, nullable=False, doc="wait, skip or cancel"),
    Column("pushes", Text, nullable=False, doc="volumes that its commands say they push, as JSON"),
    Column("state", Text, nullable=False, doc="ENABLED or PAUSED"),
    Column("revision", Integer, nullable=False, doc="counts how often it was registered"),
    Column("registered_by", Text, nullable=False),
    Column("account", Text, doc="of whom: its runs start only while that one may run in the team"),
    Column("token", Text, doc="that it was registered with: its runs start only while that is valid"),
    Column("secret", LargeBinary, doc="of its webhook, sealed; null without one"),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    UniqueConstraint("team", "name"),
)

workflow_trigger = Table(
    "workflow_trigger",
    metadata,
    Column("workflow_id", Text, ForeignKey("workflow.id"), primary_key=True),
    Column("key", Text, primary_key=True, doc="such as `volume pets`"),
    Column("ordinal", Integer, nullable=False),
    Column("data", Text, nullable=False, doc="the trigger of the recipe as JSON"),
    Column("seen", Float, nullable=False, doc="the newest version, or time, that a start was decided for"),
)

workflow_firing = Table(
    "workflow_firing",
    metadata,
    Column("id", Key, primary_key=True),
    Column("workflow_id", Text, ForeignKey("workflow.id"), nullable=False),
    Column("trigger", Text, nullable=False, doc="key of the trigger, or `by hand`"),
    Column("cause", Text, nullable=False, doc="the version, the time or the id of the webhook"),
    Column("at", Float, nullable=False),
    Column("state", Text, nullable=False, doc="WAITING, STARTED, SKIPPED or REFUSED"),
    Column("run_id", Text, ForeignKey("run.id")),
    Column("message", Text, nullable=False, server_default="", doc="what was skipped, or why"),
    Column("chain", Text, nullable=False, server_default="[]", doc="workflows that led to it, as JSON"),
    Column("tries", Integer, nullable=False, server_default="0", doc="how often its start was begun"),
    Column("due_at", Float, nullable=False, doc="of a WAITING one: when somebody may try to start it"),
    UniqueConstraint("workflow_id", "trigger", "cause"),
)
Index(None, workflow_firing.c.workflow_id, workflow_firing.c.id)
Index(None, workflow_firing.c.run_id)
Index(None, workflow_firing.c.state)
