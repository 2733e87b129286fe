"""Tables of runs, their services and sinks. Times are Unix seconds (UTC); JSON is text written by the caller.

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

#: A shared server sees more than 2^31 events; SQLite numbers rows by itself only if told INTEGER.
Key = BigInteger().with_variant(Integer, "sqlite")

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
    Column("wallet", Text, doc="that its money is from, beside its team's budget; null without one"),
    Column("can_move", Boolean, nullable=False, server_default=false(), doc="any server may go on with it"),
    Column("kept_by", Text, doc="home that has its files since it took the run over; null: `home_id`"),
    Column("labels", Text, nullable=False, server_default="{}", doc="what it is found by, as JSON"),
    Column("note", Text, nullable=False, server_default="", doc="what somebody has to say of it"),
    Column("away", Text, doc="while a machine of its own drives it: what is known of that one, as JSON"),
    Column("removed_at", Float, doc="since then it is shown no more, and what is left of it goes"),
    Column("trimmed_at", Float, doc="since then only what is needed of it is there"),
)
Index(None, run.c.created_at)
Index(None, run.c.team, run.c.created_at)
# Of a hundred thousand runs few are not over, and drivers ask for those twice a second.
_is_open = run.c.state != text("'DONE'")
Index(None, run.c.away)
Index("ix_run_open", run.c.lease_owner, sqlite_where=_is_open)

experiment = Table(
    "experiment",
    metadata,
    Column("id", Key, primary_key=True),
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
    Column("id", Key, primary_key=True),
    Column("experiment_id", Key, ForeignKey("experiment.id"), nullable=False),
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
    Column("kept_checkpoint", Integer, doc="attempt whose last checkpoint is in the home"),
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
    Column("id", Key, primary_key=True),
    Column("experiment_id", Key, ForeignKey("experiment.id"), nullable=False),
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
    Column("id", Key, primary_key=True),
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
    Column("topic", Text, doc="what it tells of: see spec/topics.py"),
)
Index(None, event.c.run_id, event.c.id)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Key, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("event_id", Key, ForeignKey("event.id"), nullable=False),
    Column("subscription", Integer, nullable=False, doc="whom to tell: the place in the recipe's `notify`"),
    Column("tries", Integer, nullable=False, server_default="0", doc="how often that was begun"),
    UniqueConstraint("event_id", "subscription"),
)
Index(None, outbox.c.run_id)

run_file = Table(
    "run_file",
    metadata,
    Column("id", Key, primary_key=True, doc="grows in the order in which pieces of a run are written"),
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

run_fact = Table(
    "run_fact",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("kind", Text, primary_key=True, doc="a Fact"),
    Column("name", Text, primary_key=True, doc="of what: a volume as the recipe names it, an experiment"),
    Column("value", Text, nullable=False, doc="what the first look has found, for whoever drives it later"),
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
    Column("id", Key, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("experiment", Text, doc="null for the whole run"),
    Column("kind", Text, nullable=False, doc="estimate or binding"),
    Column("made_at", Float, nullable=False),
    Column("data", Text, nullable=False),
    Column("time_s", Float, doc="the truth, once it has ended"),
    Column("cost_usd", Float, doc="the truth, once it has ended"),
    Column("kept", Boolean, doc="it succeeded within its p95 of time and cost; null: ended by hand"),
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
    Column("worker", Text, doc="what works on it: a name for each beginning"),
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
    Column("home_id", Text, nullable=False, doc="of the home that rented it; others may not touch it"),
    Column("state", Text, nullable=False),
    Column("kept_until", Float, doc="while KEPT: its machines end themselves then"),
    Column("waited_s", Float, doc="from the first request to the first time that it was up"),
    Column("data", Text, nullable=False, doc="plan, machines and what went wrong, as JSON"),
    Column("changed_at", Float, nullable=False),
)
Index(None, cluster.c.run_id)

endpoint = Table(
    "endpoint",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, ForeignKey("team.name"), doc="whose it is; null for the owner of the home"),
    Column("name", Text, nullable=False, doc="by which it is asked"),
    Column("place", Text, unique=True, doc="team/name, which one has at a time; null when it is over"),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("experiment", Text, nullable=False),
    Column("model", Text, doc="as the recipe names it"),
    Column("version", Text, doc="that replicas are to have: NAME@NUMBER, or a task's model"),
    Column("model_uri", Text, doc="where that is published"),
    Column("refused", Text, doc="the version that did not become healthy while another one answered"),
    Column("failures", Integer, nullable=False, server_default="0", doc="ends of replicas in a row"),
    Column("try_at", Float, nullable=False, server_default="0", doc="before that none is begun anew"),
    Column("asked_at", Float, doc="when somebody was turned away last, by `Database.clock_s`"),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    UniqueConstraint("run_id", "experiment"),
)
Index(None, endpoint.c.team, endpoint.c.created_at)

replica = Table(
    "replica",
    metadata,
    Column("id", Text, primary_key=True),
    Column("endpoint_id", Text, ForeignKey("endpoint.id"), nullable=False),
    Column("task", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0", doc="whose port it is"),
    Column("version", Text),
    Column("model_uri", Text),
    Column("state", Text, nullable=False, doc="STARTING, READY, DRAINING or GONE"),
    Column("node", Text, doc="its machine; null for that of the run's home"),
    Column("port", Integer),
    Column("said", Text, nullable=False, server_default="", doc="what the health check saw last"),
    Column("created_at", Float, nullable=False),
    Column("ready_at", Float, doc="when it answered for the first time"),
    Column("draining_since", Float, doc="since then it gets no new requests; by `Database.clock_s`"),
    Column("ended_at", Float),
    UniqueConstraint("endpoint_id", "task"),
)

replica_load = Table(
    "replica_load",
    metadata,
    Column("replica_id", Text, ForeignKey("replica.id"), primary_key=True),
    Column("server", Text, primary_key=True, doc="whose proxy has counted"),
    Column("in_flight", Integer, nullable=False),
    Column("at", Float, nullable=False, doc="by `Database.clock_s`: soon it says nothing any more"),
)

sink = Table(
    "sink",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("kind", Text, primary_key=True, doc="mlflow or wandb"),
    Column("state", Text, nullable=False, doc="RUNNING, or DONE: the run is over, and it has all"),
    Column("remote", Text, doc="what the other side calls the place of the run, once it has one"),
    Column("trouble", Text, nullable=False, server_default="", doc="why the last try has failed"),
    Column("failures", Integer, nullable=False, server_default="0", doc="of tries, one after the other"),
    Column("try_at", Float, nullable=False, server_default="0", doc="not before"),
    Column("owner", Text, doc="the process that sends, as `this_process` names it"),
    Column("expires_at", Float, doc="of its lease, by `Database.clock_s`"),
)
Index("ix_sink_state", sink.c.state)

sink_cursor = Table(
    "sink_cursor",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("experiment", Text, primary_key=True),
    Column("task", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("remote", Text, nullable=False, doc="what the other side calls the task"),
    Column("reports", BigInteger, nullable=False, server_default="0", doc="so many were taken"),
    Column("sending", BigInteger, nullable=False, server_default="0", doc="up to here is on its way"),
    Column("sending_at", Float, nullable=False, server_default="0", doc="when what has no time was made"),
    Column("is_over", Boolean, nullable=False, server_default=false(), doc="there is nothing more of it"),
)
