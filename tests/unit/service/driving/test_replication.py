"""Files of a run on one server are the same on another one: to look at, and to go on with."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.control.task.layout import Home
from trainmaster.db import (
    AcceptedRun,
    ClosedAttempt,
    ClusterRow,
    Database,
    Lease,
    Note,
    RunChange,
    Submission,
    TaskChange,
    run_files,
    tables,
)
from trainmaster.db.held_runs import undriven
from trainmaster.db.run_files import SECRETS, private_place
from trainmaster.providers.aws.ledger import AwsLedger
from trainmaster.service import Service
from trainmaster.service.driving import replicas
from trainmaster.service.driving.encryption import SealedError, SealingKey
from trainmaster.service.driving.replicas import RunReplicas, bring_code, send_code, why_bound
from trainmaster.service.runs.run_stream import RunStream
from trainmaster.spec import Recipe
from trainmaster.spec.errors import LeaseLostError, NotFoundError, PublishError, StoreError, UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.transport.base import HostKeyError, jump_target
from trainmaster.transport.host_keys import FILE_NAME, HostKeys

RECIPE = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}}).model_dump_json()


class Server:
    """One of two servers with homes of their own, one database and one key."""

    def __init__(self, place, database, key_file=None):
        environ = {"TRAINMASTER_HOME": str(place), "TRAINMASTER_CACHE": f"{place}-cache"}
        self.home = Home.from_environment(environ)
        self.environ = environ | ({"TRAINMASTER_KEY_FILE": str(key_file)} if key_file else {})
        self.database = database
        self.replicas = RunReplicas(database, self.home)

    def accept(self, run, **more):
        snapshot = self.home.snapshots / "1a2b"
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "train.py").write_text("1")
        store = f"file://{self.home.root.parent}/store"  # of both
        send_code(store, snapshot)
        new = AcceptedRun(
            run, "r", RECIPE, "r.yaml", "lab", str(snapshot), store, [("main", 9)],
            home=str(self.home.root), home_id=self.home.identity(), can_move=True, **more,
        )  # fmt: skip
        return self.database.create_run(new, time.time())

    def replication(self, lease):
        found = self.replicas.replication(lease, self.environ)
        assert found is not None
        return found

    def row(self, run):
        return self.database.run_row(run)

    def take(self, run):
        lease = self.database.acquire(run, time.time())
        assert lease is not None
        self.replicas.take_over(lease, self.environ)
        return lease


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    found = Database(f"sqlite:///{tmp_path_factory.mktemp('db') / 'x.db'}")
    yield found
    found.close()


@pytest.fixture
def servers(tmp_path, database):
    SealingKey.of(tmp_path, {})
    return [Server(tmp_path / name, database, tmp_path / "server.key") for name in "ab"]


@pytest.fixture
def run():
    return f"r-{uuid4()}"


def begin(database, lease, number=0):
    change = TaskChange("main", number, 1, State.WAITING, State.RUNNING, creates=True, opens=True)
    database.commit(lease, [change], time.time())


def files_of(home, run):
    root = home.run_directory(run)
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("tasks/**/*") if path.is_file()
    }


ROUNDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["worker-0.log", "system-i-1.log", "worker-0.log.1", "worker-0.metrics.jsonl", "places.json"]
        ),
        st.sampled_from(["grow", "again", "remove", "empty"]),
        st.binary(max_size=9),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(rounds=ROUNDS)
def test_whatever_is_written_when_another_server_sees_the_same(tmp_path_factory, database, rounds):
    place, run = tmp_path_factory.mktemp("servers"), f"r-{uuid4()}"
    SealingKey.of(place, {})
    a, b = (Server(place / name, database, place / "server.key") for name in "ab")
    lease = a.accept(run)
    files = a.replication(lease)
    directory = a.home.attempt(run, "main", 0, 1).directory
    directory.mkdir(parents=True)
    files._live = [directory]
    for name, how, data, sends, looks in rounds:
        path = directory / name
        if how == "remove":
            path.unlink(missing_ok=True)
        elif how == "empty":
            path.write_bytes(b"")
        elif how == "again" and not name.startswith("worker"):  # those only grow
            path.write_bytes(data)
        else:
            with path.open("ab") as file:
                file.write(data)
        if sends or how in ("remove", "empty"):  # what grows is not seen to begin anew with as many bytes
            files.flush()
        if looks:
            b.replicas.files(b.row(run))
    files.flush()
    assert run_files.sizes(database, run).keys() == {f"tasks/main/0/1/{p.name}" for p in directory.iterdir()}
    database.release(lease, time.time())
    b.take(run)
    assert files_of(b.replicas.taken(b.row(run)), run) == files_of(a.home, run)


def test_what_one_logs_in_to_is_known_by_the_key_that_the_home_has_pinned(servers, run):
    a, b = servers
    login = jump_target("ada@hpc:2200", None)
    HostKeys(b.home.root / FILE_NAME).accept(login, "ssh-ed25519 AAAA")
    a.database.release(a.accept(run), time.time())
    b.take(run)
    taken = HostKeys(b.replicas.taken(b.row(run)).root / FILE_NAME)
    with pytest.raises(HostKeyError, match="shows another host key"):
        taken.accept(login, "ssh-ed25519 BBBB")
    taken.accept(login, "ssh-ed25519 AAAA")
    taken.accept(jump_target("other", None), "ssh-ed25519 CCCC")
    b.replicas.files(b.row(run))
    assert len(taken.file.read_text().splitlines()) == 2, "what is pinned there stays"


def test_a_reader_elsewhere_has_lines_once_also_when_the_run_moves(servers, database, run):
    a, b = servers
    lease = a.accept(run)
    begin(database, lease)
    files = a.replication(lease)
    place = a.home.attempt(run, "main", 0, 1)
    place.directory.mkdir(parents=True)
    files._live = [place.directory]
    stream = RunStream(Service(b.home, database), run)
    place.log("worker-0").write_text("one\n")
    files.flush()

    def lines():
        return [message.data["text"] for message in stream.read() if message.kind == "log"]

    assert lines() == ["one\n"]
    with place.log("worker-0").open("a") as log:
        log.write("two\n")
    assert lines() == [], "it was not sent yet"
    files.flush()
    database.release(lease, time.time())
    lease = b.take(run)
    moved = b.replicas.taken(b.row(run)).attempt(run, "main", 0, 1).log("worker-0")
    assert b.home.root in moved.parents
    assert lines() == ["two\n"]
    with moved.open("a") as log:
        log.write("three\n")
    assert lines() == ["three\n"]
    with place.log("worker-0").open("a") as log:
        log.write("of a driver that drives it no more\n")
    with pytest.raises(LeaseLostError):
        files.flush()
    again = b.replication(lease)
    again.begin()
    again.close(None)
    stream = RunStream(Service(a.home, database), run)
    assert "".join(lines()) == "one\ntwo\nthree\n", "also on the server that it began on"


def test_which_hdfs_holds_what_was_staged_comes_along_and_data_do_not(servers, database, run):
    """Another driver that knew nothing of it would make another one, under members that read the first."""
    a, b = servers
    lease = a.accept(run)
    inputs = a.home.data_directory(run)
    (inputs / "hdfs" / "name").mkdir(parents=True)
    (inputs / "hdfs" / "name" / "image").write_text("large")
    (inputs / "at-images.lock").touch()
    (inputs / "hdfs.json").write_text('{"m-1": {"id": "1"}}')
    files = a.replication(lease)
    files.begin()
    (inputs / "hdfs.json").write_text('{"m-1": {"id": "2"}}')
    begin(database, lease)
    files.close(None)
    database.release(lease, time.time())
    lease = b.take(run)
    there = b.replicas.taken(b.row(run)).data_directory(run)
    assert [path.name for path in there.iterdir()] == ["hdfs.json"]
    assert (there / "hdfs.json").read_text() == '{"m-1": {"id": "2"}}'


def test_what_is_private_is_sealed_and_comes_along(servers, database, run):
    a, b = servers
    lease = a.accept(run)
    database.put_cluster(lease, cluster_row(run), time.time())
    files = a.replication(lease)
    directory = a.home.root / "providers" / "lab"
    directory.mkdir(parents=True)
    memory = AwsLedger(directory, files.save_private)
    public = memory.public_key()
    memory.add_region("us-east-1")
    memory.host_key(f"{run}.main", "worker-0")
    memory.host_key("of another run", "worker-0")
    token = a.home.root / "clusters" / f"{run}.main" / "1" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    (token.parent / "nodes.json").write_text("paths of this home")
    files.save_private()
    rows = run_files.private(database, run)
    assert len(rows) == 5
    assert not any(b"PRIVATE KEY" in sealed or b"secret" in sealed for sealed in rows.values())
    database.release(lease, time.time())
    b.take(run)
    home = b.replicas.taken(b.row(run))
    assert home.identity() == a.home.identity() != b.home.identity()
    brought = AwsLedger(home.root / "providers" / "lab")
    assert (brought.public_key(), brought.regions()) == (public, ["us-east-1"])
    assert brought.private_key.read_bytes() == memory.private_key.read_bytes()
    assert brought.private_key.stat().st_mode & 0o777 == 0o600
    assert (home.code_directory(run) / "train.py").read_text() == "1"
    assert brought.host_key(f"{run}.main", "worker-0") == memory.host_key(f"{run}.main", "worker-0")
    assert (home.root / "clusters" / f"{run}.main" / "1" / "token").read_text() == "secret"


def test_a_run_that_is_elsewhere_is_looked_at_and_reached_but_is_no_home(servers, database, run):
    a, b = servers
    lease = a.accept(run)
    database.put_cluster(lease, cluster_row(run), time.time())
    memory = AwsLedger(a.home.root / "providers" / "lab")
    memory.directory.mkdir(parents=True)
    memory.public_key()
    memory.add_region("us-east-1")
    log = a.home.attempt(run, "main", 0, 1).log("worker-0")
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    elsewhere = Service(b.home, database)
    with pytest.raises(NotFoundError, match="no key of its machines is kept"):
        elsewhere.access_to(run, b.environ)
    a.replication(lease).close(None)
    with pytest.raises(UsageError, match="is driven elsewhere"):
        elsewhere.home_of(run)
    assert elsewhere.home_if_here(run) is None
    files = elsewhere.files_of(run)
    assert not isinstance(files, Home), "what it has is for looking at"
    assert files.attempt(run, "main", 0, 1).log("worker-0").read_text() == "one\n"
    for _ in range(2):  # a client may read it while another one begins
        place = elsewhere.access_to(run, b.environ)
        known = AwsLedger(place.directory("lab"))
        assert (place.identity, known.regions()) == (a.home.identity(), ["us-east-1"])
        assert known.private_key.read_bytes() == memory.private_key.read_bytes()
        assert known.private_key.stat().st_mode & 0o777 == 0o600
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)], time.time())
    other = f"{run}-2"
    a.accept(other)
    with suppress(NotFoundError):
        elsewhere.access_to(other, b.environ)
    assert not place.root.exists(), "keys of a run that is over are not kept"


def cluster_row(run):
    return ClusterRow(f"{run}.main", "lab", "home", "ACTIVE", "{}")


def test_another_key_brings_nothing_over(servers, database, run, tmp_path):
    a, b = servers
    lease = a.accept(run)
    database.put_cluster(lease, cluster_row(run), time.time())
    token = a.home.root / "clusters" / f"{run}.main" / "1" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    a.replication(lease).save_private()
    database.release(lease, time.time())
    with pytest.raises(SealedError, match="was sealed with the key"):
        Server(tmp_path / "c", database).take(run)
    assert b.row(run)["kept_by"] is None


@pytest.mark.parametrize("where", ["pull", "keep_here"])
def test_who_is_killed_while_it_brings_a_run_over_begins_again(servers, database, run, monkeypatch, where):
    a, b = servers
    lease = a.accept(run)
    log = a.home.attempt(run, "main", 0, 1).log("worker-0")
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    a.replication(lease).close(None)
    database.release(lease, time.time())

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(replicas if where == "pull" else run_files, where, killed)
        with pytest.raises(KeyboardInterrupt):
            b.take(run)
    assert b.row(run)["kept_by"] is None
    database.release(Lease(run, b.row(run)["lease_token"], ""), time.time())
    b.take(run)
    assert files_of(b.replicas.taken(b.row(run)), run) == files_of(a.home, run)


def test_a_run_comes_back_with_what_was_written_elsewhere(servers, database, run):
    a, b = servers
    lease = a.accept(run)
    log = a.home.attempt(run, "main", 0, 1).log("worker-0")
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    a.replication(lease).close(None)
    for server, more in ((b, "two\n"), (a, "three\n"), (b, "four\n")):
        database.release(lease, time.time())
        lease = server.take(run)
        log = server.replicas.taken(server.row(run)).attempt(run, "main", 0, 1).log("worker-0")
        with log.open("a") as file:
            file.write(more)
        files = server.replication(lease)
        files.begin()
        files.close(None)
    assert log.read_text() == "one\ntwo\nthree\nfour\n"


def test_secrets_are_those_that_it_was_started_with(servers, database, run):
    a, b = servers
    key = SealingKey.of(a.home.root, a.environ)
    a.accept(run, private={SECRETS: key.seal(b'{"TOKEN": "x"}', private_place(run, SECRETS))})
    assert b.replicas.with_secrets(b.row(run), b.environ) == {**b.environ, "TOKEN": "x"}


class JsonObject:
    """Records what was committed, and what of the log was sent by then."""

    def __init__(self, database, run):
        self.database, self.run, self.sizes = database, run, []

    def commit(self, lease, changes, now):
        self.sizes.append(sum(run_files.sizes(self.database, self.run).values()))

    renew = stop_wanted = want_stop = approvals = cancelled_tasks = None


class Tasks:
    """As much of a run's state as is asked for."""

    state, reason = State.RUNNING, None

    def __init__(self, run, *tasks):
        self.run, self.tasks = run, tasks

    def live_tasks(self):
        return self.tasks


class Live:
    experiment, number, attempt = "main", 0, 1


def test_files_are_sent_before_a_change_of_state_is_committed(servers, database, run):
    a, _ = servers
    lease = a.accept(run)
    log = a.home.attempt(run, "main", 0, 1).log("worker-0")
    log.parent.mkdir(parents=True)
    told = JsonObject(database, run)
    files = a.replication(lease)
    records = files.records(told, Tasks(run, Live()))
    log.write_text("12345")
    records.commit(lease, [Note("nothing of it")], 1.0)
    closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", 1.0, 2.0, None, "[]")
    done = TaskChange("main", 0, 1, State.RUNNING, State.DONE, EndReason.SUCCEEDED, "", closes=closes)
    records.commit(lease, [done], 1.0)
    assert told.sizes == [0, 5]


@pytest.mark.parametrize(("where", "name"), [(os, "listdir"), (Path, "lstat")])
def test_what_cannot_be_read_is_not_gone(servers, database, run, monkeypatch, where, name):
    a, _ = servers
    log = a.home.attempt(run, "main", 0, 1).log("worker-0")
    files = a.replication(a.accept(run))
    told = JsonObject(database, run)
    records = files.records(told, Tasks(run, Live()))
    log.parent.mkdir(parents=True)
    log.write_text("12345")
    files.flush()

    def busy(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    over = RunChange(State.RUNNING, State.DONE, EndReason.SUCCEEDED)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, busy)
        with pytest.raises(StoreError, match="Too many open files"):
            records.commit(None, [over], 1.0)
    assert told.sizes == [], "nothing is said that files do not have"
    files.flush()
    assert sum(run_files.sizes(database, run).values()) == 5


def test_at_the_end_files_are_put_together_and_keys_removed(servers, database, run):
    a, _ = servers
    lease = a.accept(run, private={SECRETS: b"sealed"})
    log = a.home.attempt(run, "main", 0, 1).log("worker-0")
    log.parent.mkdir(parents=True)
    files = a.replication(lease)
    files._live = [log.parent]
    for text in ("one\n", "two\n"):
        with log.open("a") as file:
            file.write(text)
        files.flush()
    over = Tasks(run)
    over.state, over.reason = State.DONE, EndReason.SUCCEEDED
    files.close(over)
    assert [piece.data for _, piece in run_files.pieces(database, run)] == [b"one\ntwo\n"]
    assert run_files.private(database, run) == {}


def test_code_goes_by_the_object_store(tmp_path):
    snapshot = tmp_path / "a" / "1a2b"
    (snapshot / "pkg").mkdir(parents=True)
    (snapshot / "pkg" / "run.sh").write_text("true")
    (snapshot / "pkg" / "run.sh").chmod(0o555)
    (snapshot / "link").symlink_to("pkg/run.sh")
    store = f"file://{tmp_path / 'store'}"
    with pytest.raises(PublishError, match="is gone"):
        bring_code(store, "1a2b", tmp_path / "b")
    for _ in range(2):
        send_code(store, snapshot)
        brought = bring_code(store, "1a2b", tmp_path / "b")
    assert (brought / "pkg" / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (brought / "link").read_text() == "true"


@pytest.mark.parametrize(
    ("provider", "store", "is_shared", "why"),
    [
        ("aws", "s3://b/store", True, ""),
        ("lab", "gs://b/store", True, ""),
        ("local", "s3://b/store", True, "it runs on local"),
        ("hosts", "s3://b/store", True, "it runs on hosts"),
        ("aws", "file:///store", True, "on the disk of that server"),
        ("aws", "s3://b/store", False, "its database is a file"),
    ],
)
def test_which_runs_stay_where_they_are(provider, store, is_shared, why):
    found = why_bound(provider, store, is_shared=is_shared)
    assert why in found
    assert bool(found) == bool(why)


def test_a_run_that_stays_says_so_and_is_refused_elsewhere(servers, database, run):
    a, b = servers
    new = AcceptedRun(
        run, "r", RECIPE, "r.yaml", "local", "/a/snapshots/code", "s3://s", [("main", 9)],
        home=str(a.home.root), home_id=a.home.identity(), submission=Submission("ann"),
    )  # fmt: skip
    database.create_run(new, time.time(), waits=True)
    (a.home.root / "identity").unlink()  # as on a machine that cannot read it
    elsewhere = Service(b.home, database)
    found = elsewhere.status(run)["bound_to"]
    assert found == {
        "home": str(a.home.root),
        "why": "it runs on local, which only that server can go on with",
    }
    for ask in (elsewhere.home_of, lambda each: elsewhere.take(each, b.environ)):
        with pytest.raises(UsageError, match="cannot be read from here: it runs on local"):
            ask(run)


def test_others_wait_a_while_for_the_server_that_a_run_is_of(servers, database, run):
    a, b = servers
    lease = a.accept(run, submission=Submission("ann"))
    assert run not in undriven(database, b.home.identity())
    database.release(lease, time.time())
    assert run in undriven(database, a.home.identity())
    assert run not in undriven(database, b.home.identity()), "its own server comes first"
    long_ago = tables.run.update().where(tables.run.c.id == run).values(lease_expires_at=time.time() - 60)
    database.write(lambda connection, _: connection.execute(long_ago))
    assert run in undriven(database, b.home.identity())
    lease = b.take(run)
    database.release(lease, time.time())
    assert run in undriven(database, b.home.identity())
    assert run not in undriven(database, a.home.identity())


def test_a_path_out_of_the_run_is_refused(servers, database, run):
    a, b = servers
    lease = a.accept(run)
    run_files.put_pieces(database, lease, [run_files.Piece("../../identity", 0, b"x")])
    with pytest.raises(PublishError, match="a file of it is called"):
        b.replicas.files(b.row(run))


def test_what_is_sent_can_move_where_others_can_reach_all_of_it(servers, postgres, tmp_path, monkeypatch):
    a, _ = servers
    database = Database(postgres.new_url())
    found = RunReplicas(database, replace(a.home, store_url="memory"))
    monkeypatch.setattr(replicas, "send_code", lambda *_: None)
    snapshot = tmp_path / "snapshot"
    (snapshot / "data").mkdir(parents=True)

    def prepared(store="s3://b/store", **keys):
        top = {key: keys.pop(key) for key in ("provider", "code") if key in keys}
        content = {
            "name": "a",
            "provider": "aws",
            **top,
            "experiments": {"main": {"command": "true", **keys}},
        }
        recipe = Recipe.from_dict(content, directory=tmp_path)
        found._home = replace(a.home, store_url=store)
        return found.prepare("a-1", recipe, snapshot, {"main": {"TOKEN": "x"}}, a.environ)

    sealed = prepared()[SECRETS]
    key = SealingKey.of(a.home.root, a.environ)
    assert key.open(sealed, private_place("a-1", SECRETS)) == b'{"TOKEN": "x"}'
    assert prepared(data={"d": {"dir": "data"}}) is not None
    assert prepared(data={"d": {"dir": "elsewhere"}}) is None
    assert prepared(data={"d": {"dir": "data"}}, code="src") is None, "another directory of that name"
    assert prepared(provider="local") is None
    assert prepared(store="file:///store") is None
    database.close()
