"""The tables. Times are Unix seconds (UTC); JSON is text written by the caller.

A task gets its row when it is first planned, so a run of a million tasks starts at once:
tasks without a row are WAITING, or ended with their experiment's ``rest_reason``.
"""

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
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# A shared server sees more than 2^31 events; SQLite numbers rows by itself only if told INTEGER.
_Key = BigInteger().with_variant(Integer, "sqlite")

run = Table(
    "run",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("recipe", Text, nullable=False, doc="the recipe model as JSON; holds no secret values"),
    Column("recipe_path", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("code_path", Text, nullable=False, doc="the immutable snapshot its members work on"),
    Column("store_url", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("message", Text, nullable=False, server_default=""),
    Column("created_at", Float, nullable=False),
    Column("session_at", Float, doc="when the present (or last) control process took over"),
    Column("ended_at", Float),
    Column("closed_at", Float, doc="after ended_at: when its machines were given back and its driver left"),
    Column("earlier_s", Float, nullable=False, server_default="0", doc="driven time before session_at"),
    Column("queued_at", Float, doc="since when nothing of it runs, since other runs hold what it needs"),
    Column("queued_for", Text, doc="what that is and who holds it, as JSON"),
    Column("queued_s", Float, nullable=False, server_default="0", doc="how long that was so before"),
    Column("cost_usd", Float, nullable=False, server_default="0"),
    Column("stop_wanted", Text, doc="an EndReason: somebody asked for the end of the run"),
    Column("lease_owner", Text),
    Column("lease_token", Integer, nullable=False, server_default="0"),
    Column("lease_expires_at", Float),
    Column("turn", BigInteger, nullable=False, server_default="0", doc="how often it was committed to"),
    Column(
        "home", Text, nullable=False, server_default="", doc="directory of the home its processes live in"
    ),
    Column("home_id", Text, nullable=False, server_default="", doc="of that home: a path may mean many"),
    Column("notify", Text, doc="for each subscription the kinds of events that it wants, as JSON"),
    Column("team", Text, doc="whose it is; null for what the owner of the home runs"),
    Column("submitted_by", Text, doc="who sent it to a server, which has it driven; null without one"),
    Column("can_move", Boolean, nullable=False, server_default=false(), doc="any server may go on with it"),
    Column("kept_by", Text, doc="home that has its files since it took the run over; null: `home_id`"),
)
Index(None, run.c.created_at)
Index(None, run.c.team, run.c.created_at)
# Of a hundred thousand runs few are not over, and drivers ask for those twice a second.
_is_open = run.c.state != text("'DONE'")
Index("ix_run_open", run.c.lease_owner, sqlite_where=_is_open)

experiment = Table(
    "experiment",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("message", Text, nullable=False, server_default=""),
    Column("tasks_total", BigInteger, nullable=False),
    Column("rest_reason", Text, doc="how the tasks without a row ended"),
    UniqueConstraint("run_id", "name"),
)

task = Table(
    "task",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("experiment_id", _Key, ForeignKey("experiment.id"), nullable=False),
    Column("number", BigInteger, nullable=False, doc="0-based, addresses its parameters"),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("message", Text, nullable=False, server_default=""),
    Column("parameters", Text, nullable=False, server_default="{}"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("retries_used", Integer, nullable=False, server_default="0"),
    Column("free_restarts", Integer, nullable=False, server_default="0"),
    Column("not_before", Float, nullable=False, server_default="0"),
    Column("tries", Integer, nullable=False, server_default="0", doc="of the present stage or save, in vain"),
    Column("try_at", Float, nullable=False, server_default="0", doc="when that begins anew"),
    Column("saving_usd", Float, nullable=False, server_default="0", doc="spent on waiting for a save"),
    Column("kept_model", Integer, doc="attempt whose model could not be published and is in the home"),
    Column("kept_checkpoint", Integer, doc="likewise of its last checkpoint"),
    Column("end_reason", Text, doc="how the last attempt ended, while it is saved or recovered"),
    Column("parent", BigInteger, doc="task whose last checkpoint the first attempt starts from"),
    Column("restored", Integer, doc="checkpoint number the present attempt started from"),
    Column("bad_checkpoints", Text, nullable=False, server_default="[]"),
    Column("metrics", Text, nullable=False, server_default="{}"),
    Column("model_uri", Text),
    Column("started_at", Float),
    Column("ended_at", Float),
    UniqueConstraint("experiment_id", "number"),
)
Index(None, task.c.experiment_id, task.c.state, task.c.reason)
# Partial on SQLite only: naming another dialect here would import it at every start.
Index("ix_task_model", task.c.experiment_id, task.c.number, sqlite_where=task.c.model_uri.is_not(None))
Index("ix_task_kept", task.c.experiment_id, task.c.number, sqlite_where=task.c.kept_model.is_not(None))

attempt = Table(
    "attempt",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("experiment_id", _Key, ForeignKey("experiment.id"), nullable=False),
    Column("task", BigInteger, nullable=False),
    Column("number", Integer, nullable=False, doc="1-based"),
    Column("reason", Text),
    Column("message", Text, nullable=False, server_default=""),
    Column("opened_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("restored", Integer),
    Column("members", Text, doc="exit records as JSON"),
    UniqueConstraint("experiment_id", "task", "number"),
)

event = Table(
    "event",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("experiment", Text),
    Column("task", BigInteger),
    Column("attempt", Integer),
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("reason", Text),
    Column("message", Text, nullable=False, server_default=""),
)
Index(None, event.c.run_id, event.c.id)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("event_id", _Key, ForeignKey("event.id"), nullable=False),
    Column("subscription", Integer, nullable=False, doc="whom to tell: the place in the recipe's `notify`"),
    Column("tries", Integer, nullable=False, server_default="0", doc="how often that was begun"),
    UniqueConstraint("event_id", "subscription"),
)
Index(None, outbox.c.run_id)

run_file = Table(
    "run_file",
    metadata,
    Column("id", _Key, primary_key=True, doc="grows in the order in which pieces of a run are written"),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("path", Text, nullable=False, doc="below the run's directory"),
    Column("offset", BigInteger, nullable=False, doc="in bytes; at 0 the file begins anew"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "path", "offset"),
    sqlite_autoincrement=True,  # no id is given twice: readers remember the last one
)
Index(None, run_file.c.run_id, run_file.c.id)

run_private = Table(
    "run_private",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sealed", LargeBinary, nullable=False, doc="with the servers' key, for this run and name"),
)

measurement = Table(
    "measurement",
    metadata,
    Column("id", Text, primary_key=True, doc="what was measured: an attempt, so that it is kept once"),
    Column("fingerprint", Text, nullable=False),
    Column("similar", Text, nullable=False, doc="looser fingerprint: other code or parameters"),
    Column("experiment", Text, nullable=False),
    Column("run_id", Text, doc="null for a profiling attempt"),
    Column("data", Text, nullable=False),
    Column("measured_at", Float, nullable=False),
)
Index(None, measurement.c.fingerprint, measurement.c.measured_at)
Index(None, measurement.c.similar, measurement.c.measured_at)

quote = Table(
    "quote",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("experiment", Text, doc="null for the whole run"),
    Column("kind", Text, nullable=False, doc="estimate or binding"),
    Column("made_at", Float, nullable=False),
    Column("data", Text, nullable=False),
    Column("time_s", Float, doc="the truth, once it has ended"),
    Column("cost_usd", Float, doc="likewise"),
    Column("kept", Boolean, doc="likewise: succeeded within its p95 of time and of cost"),
)
Index(None, quote.c.run_id, quote.c.id)

quote_request = Table(
    "quote_request",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, doc="quote, or plan: what a run would rent"),
    Column("team", Text, nullable=False, doc="empty: the owner of the home"),
    Column("asked_by", Text, nullable=False),
    Column("request", Text, nullable=False, doc="what was asked, as JSON"),
    Column("state", Text, nullable=False),
    Column("place", Integer, doc="of the few that a team has at once; null when it is over"),
    Column("worker", Text, doc="who works on it: a name for each beginning"),
    Column("expires_at", Float, doc="when somebody else may begin again, by the database's clock"),
    Column("attempts", Integer, nullable=False, doc="how often it was begun"),
    Column("told", Text, nullable=False, doc="lines for people and quotes until now, a JSON list"),
    Column("progress", Text, doc="how far the measurement is, as JSON"),
    Column("answer", Text, doc="as JSON; null before, and if it failed"),
    Column("error", Text, doc="why there is no answer, as JSON"),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    UniqueConstraint("team", "place"),
)
Index(None, quote_request.c.team, quote_request.c.created_at)
Index(None, quote_request.c.state)

cluster = Table(
    "cluster",
    metadata,
    Column("id", Text, primary_key=True, doc="what its machines are tagged with"),
    Column(
        "run_id", Text, ForeignKey("run.id"), nullable=False, doc="whose it is now: a warm one changes hands"
    ),
    Column("provider", Text, nullable=False),
    Column("home_id", Text, nullable=False, doc="of the home that rented it: nobody else may touch it"),
    Column("state", Text, nullable=False),
    Column("kept_until", Float, doc="while KEPT: its machines end themselves then"),
    Column("waited_s", Float, doc="from the first request to the first time that it was up"),
    Column("data", Text, nullable=False, doc="plan, machines and what went wrong, as JSON"),
    Column("changed_at", Float, nullable=False),
)
Index(None, cluster.c.run_id)

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
    Column("runs_at_once", Integer, doc="likewise"),
    Column("usd_per_hour", Float, doc="likewise, of all of its runs together"),
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
    Column("usd_per_hour", Float, nullable=False, doc="likewise per hour"),
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
    Column("id", _Key, primary_key=True),
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
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("used_by", Text),
)
Index(None, invite.c.team)

team_secret = Table(
    "team_secret",
    metadata,
    Column("team", Text, ForeignKey("team.name"), primary_key=True),
    Column("name", Text, primary_key=True, doc="of the variable that tasks get"),
    Column("sealed", LargeBinary, nullable=False),
    Column("changed_by", Text, nullable=False),
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
    Column("id", _Key, primary_key=True),
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
    Column("claimed_until", Float, doc="by `Database.clock_s`; renewed by who finishes it"),
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
    Column("id", _Key, primary_key=True),
    Column("at", Float, nullable=False),
    Column("name", Text, nullable=False, doc="of the token or user; empty of who gave none that is valid"),
    Column("team", Text),
    Column("address", Text, nullable=False),
    Column("action", Text, nullable=False, doc="method and path"),
    Column("status", Integer, nullable=False, doc="HTTP status that it was answered with"),
    Column("token", Text, doc="name of the token that it was done with; null in a browser"),
)
Index(None, audit.c.at)

registered_model = Table(
    "registered_model",
    metadata,
    Column("team", Text, primary_key=True, doc="empty for the owner of the home"),
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False, server_default=""),
    Column("tags", Text, nullable=False, server_default="{}", doc="as JSON"),
    Column("last_version", Integer, nullable=False, server_default="0", doc="no number is given twice"),
    Column("created_at", Float, nullable=False),
)

model_version = Table(
    "model_version",
    metadata,
    Column("team", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False, doc="that left it"),
    Column("experiment", Text, nullable=False),
    Column("task", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
    Column("tags", Text, nullable=False, server_default="{}", doc="as JSON"),
    Column("created_by", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("team", "name", "run_id", "experiment", "task"),
)
Index(None, model_version.c.run_id)

model_alias = Table(
    "model_alias",
    metadata,
    Column("team", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("alias", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("moved_by", Text, nullable=False),
    Column("moved_at", Float, nullable=False),
)

model_move = Table(
    "model_move",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("alias", Text, nullable=False),
    Column("before", Integer, doc="the version that the alias meant; null if there was none"),
    Column("version", Integer, doc="that it means since; null: it was taken away"),
    Column("kind", Text, nullable=False, doc="promote, rollback, remove, or run"),
    Column("moved_by", Text, nullable=False),
    Column("moved_at", Float, nullable=False),
    Column("run_id", Text, doc="whose recipe has asked for it; null if somebody did it by hand"),
    Column("experiment", Text),
    UniqueConstraint("team", "name", "alias", "run_id", "experiment"),
)

run_model = Table(
    "run_model",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True, doc="that starts from it"),
    Column("experiment", Text, primary_key=True),
    Column("data", Text, primary_key=True, doc="the name that its members know it by"),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False, doc="fixed when the run was accepted"),
)
Index(None, run_model.c.team, run_model.c.name, run_model.c.version)
