"""A run moves to its machine and comes back; whatever is lost at whichever step, one drives it, never two."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
import boto3
from away_scene import RECIPE, RUN, WRITTEN, Scene, killed, lost_when_it_drives
from botocore.exceptions import ClientError

from trainmaster.cluster.record import ClusterState
from trainmaster.db import ClusterRow, Progress, RunChange, TaskChange, run_files, run_transfer
from trainmaster.db.run_files import Piece
from trainmaster.objects import ObjectStore
from trainmaster.service import clusters
from trainmaster.service.apps.notebook import prepare_notebook
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.on_cluster import away as away_runs
from trainmaster.service.on_cluster.away import AwayRuns
from trainmaster.service.on_cluster.credentials import check_narrow, driver_environment, sent_to_machine
from trainmaster.service.on_cluster.driver_store import LOST_S, DriverStore
from trainmaster.service.on_cluster.hand_over import HandingOver, why_not
from trainmaster.spec import Recipe
from trainmaster.spec.errors import LeaseLostError, PublishError, UsageError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def scene(tmp_path, monkeypatch):
    found = Scene(tmp_path, monkeypatch)
    yield found
    found.close()


def test_the_record_comes_back_whole(scene):
    assert scene.hand_over(scene.begins)
    assert not scene.is_free()
    database, lease, publication = scene.drives(scene.drivers[-1])
    assert database.run_row(RUN)["earlier_s"] > 0  # the home has driven it until then
    publication.begin()
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    change = TaskChange("main", 3, 1, State.WAITING, State.ACQUIRING, creates=True, opens=True)
    database.commit(lease, [change], time.time())
    run_files.put_pieces(database, lease, [Piece("tasks/main/3/1/worker-0.log", 0, b"one\n")])
    publication.publish()
    scene.away().look(RUN)
    assert (scene.row["state"], scene.row["away"] is None) == ("RUNNING", False)
    assert scene.home.brief(RUN)["driven"]
    assert scene.home.status(RUN)["driver"]["machine"] == "i-1"
    log = scene.home.files_of(RUN).run_directory(RUN) / "tasks/main/3/1/worker-0.log"
    assert log.read_bytes() == b"one\n"

    database.commit(lease, [RunChange(State.RUNNING, State.DONE, EndReason.SUCCEEDED, "well")], time.time())
    publication.close(None)
    publication.finish()
    for _ in range(2):
        scene.away().look(RUN)
    assert (scene.row["state"], scene.row["reason"], scene.row["away"]) == ("DONE", "SUCCEEDED", None)
    events = [(event["kind"], event["after"]) for event in scene.home.events(RUN)]
    assert events == [("run", "WAITING"), ("run", "RUNNING"), ("task", "ACQUIRING"), ("run", "DONE")]
    assert not scene.drivers[-1].settle(scene.last[-1])  # nobody begins it once more


def test_only_what_has_changed_is_published(scene, monkeypatch):
    """Of a thousand tasks the one that moved; a metric, which has no event, comes with the next."""
    assert scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])  # which does not begin: nothing beats
    records = publication.records(database, SimpleNamespace(run=RUN, state=State.RUNNING, live_tasks=list))
    store, ways = publication._store, (State.WAITING, State.ACQUIRING)
    records.commit(
        lease,
        [TaskChange("main", each, 1, *ways, creates=True, opens=True) for each in range(1000)],
        time.time(),
    )
    records.commit(lease, [Progress("main", 5, {"metrics": {"loss": 1.5}})], time.time())
    with monkeypatch.context() as patch:
        tries = iter([PublishError("the store is away")])
        kept = store.put_news
        patch.setattr(DriverStore, "put_news", lambda self, *news: fails_once(tries, kept, news))
        patch.setattr("trainmaster.service.on_cluster.publication._AGAIN_S", 0.0)
        moved = TaskChange("main", 3, 1, State.ACQUIRING, State.STAGING)
        records.commit(lease, [moved], time.time())
    state = store.state()
    news = store.news(state.news)
    assert (state.rows.tasks, state.rows.attempts) == ([], [])
    assert [row["number"] for row in news.tasks] == [3, 5]
    assert [row["task"] for row in news.attempts] == [3, 5]
    assert not publication.progressed
    for _ in range(2):
        scene.away().look(RUN)
    at_home = {row["number"]: row for row in scene.home.database.live_task_rows(RUN)}
    assert len(at_home) == 1000
    assert (at_home[3]["state"], at_home[4]["state"]) == ("STAGING", "ACQUIRING")
    assert json.loads(at_home[5]["metrics"]) == {"loss": 1.5}


def fails_once(tries, function, arguments):
    if error := next(tries, None):
        raise error
    function(*arguments)


def test_a_notebook_of_a_run_that_is_driven_there_has_its_code_and_says_what_is_not_here(scene, tmp_path):
    assert scene.hand_over(scene.begins)
    found = prepare_notebook(scene.home, RUN, tmp_path / "notebook")
    assert (tmp_path / "notebook" / "code" / "train.py").read_text() == "1"
    assert any("`code/`" in note for note in found.notes)
    assert found.pythons == {}, "its environment is on machines"


@pytest.mark.parametrize("moves", [True, False])
def test_a_volume_that_the_home_has_mounted_goes_when_the_run_moves(scene, moves):
    data = scene.home.home_of(RUN).data_directory(RUN)
    data.mkdir(parents=True)
    mounted = data / "volume-3be1d422a460"
    mounted.symlink_to(scene.place / "cache/volumes/whole/of-it")  # where nothing can be mounted
    assert scene.hand_over(scene.begins if moves else lambda _: "it has no room") == moves
    assert mounted.is_symlink() != moves


def test_what_the_home_has_done_while_the_driver_waited_is_in_its_record(scene):
    log, home = "tasks/main/3/1/worker-0.log", scene.home.database
    run_files.put_pieces(home, scene.lease, [Piece(log, 0, b"one\n"), Piece("gone", 0, b"1")])

    def drives_on():
        home.commit(scene.lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
        begun_anew = [Piece(log, 0, b"two"), Piece(log, 3, b" and three\n")]
        run_files.put_pieces(home, scene.lease, begun_anew)

    scene.while_it_waits = drives_on
    assert scene.hand_over(scene.begins)
    database, _, publication = scene.drives(scene.drivers[-1])
    assert database.run_row(RUN)["state"] == "RUNNING"
    found = {piece.path: piece.data for _, piece in run_files.pieces(database, RUN, 0)}
    assert found == {"gone": b"1", log: b" and three\n"}
    driven = scene.drivers[-1]._service.home_of(RUN).run_directory(RUN)
    assert (driven / log).read_bytes() == b"two and three\n"
    publication.begin()
    scene.away().look(RUN)
    assert (scene.home.files_of(RUN).run_directory(RUN) / log).read_bytes() == b"two and three\n"


def test_its_machines_are_given_back_while_the_next_look_would_do_it_again(scene, monkeypatch):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    database.commit(lease, [RunChange(State.RUNNING, State.DONE, EndReason.SUCCEEDED, "well")], time.time())
    publication.finish()
    is_away = []

    def given_back(_self, run):
        is_away.append(scene.row["away"] is not None)
        if len(is_away) == 1:
            raise KeyboardInterrupt  # it is killed

    monkeypatch.setattr(AwayRuns, "_give_back", given_back)
    with pytest.raises(KeyboardInterrupt):
        scene.away().look(RUN)
    scene.away().look(RUN)
    assert is_away == [True, True, False]
    assert scene.row["away"] is None


def lost_before_its_claim(_scene, _assignment):
    return "the connection was lost"


def lost_after_its_claim(scene, assignment):
    scene.begins(assignment)
    return "the connection was lost"


@pytest.mark.parametrize("fate", [lost_before_its_claim, lost_after_its_claim, lost_when_it_drives])
def test_a_machine_is_lost_and_the_home_goes_on(scene, fate):
    has_moved = scene.hand_over(lambda assignment: fate(scene, assignment))
    assert has_moved == (fate is not lost_before_its_claim)
    if has_moved:
        scene.away().take_back(RUN)
        assert not scene.is_free()  # it is not known to be lost
        scene.away(lost_s=-1).take_back(RUN)
    assert scene.row["away"] is None
    assert scene.is_free()
    assert not scene.driver().settle(scene.last[-1])  # it was only cut off, and is there again


def test_a_machine_that_was_taken_for_lost_does_nothing_any_more(scene):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    scene.away(lost_s=-1).take_back(RUN)
    back = scene.home.database.acquire(RUN, time.time())
    assert back.token > lease.token
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    with pytest.raises(LeaseLostError):
        publication.publish()
    with pytest.raises(LeaseLostError):
        publication.save_private()
    scene.away().look(RUN)
    assert scene.row["state"] == "WAITING"


def test_a_home_that_is_killed_while_it_hands_over_has_the_run_again(scene):
    with pytest.raises(KeyboardInterrupt):
        scene.hand_over(killed)
    assert not scene.is_free()
    scene.away().take_back(RUN)
    assert scene.is_free()
    assert scene.begins(scene.sent[-1]) == "another driver has it"


def test_a_home_that_is_killed_while_it_takes_back_does_so_again(scene):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    assert DriverStore(scene.store_url, RUN, 2).take(f"home {scene.home.home.identity()}")
    assert scene.away().take_back(RUN)
    assert scene.row["away"] is None
    assert scene.is_free()
    assert not scene.away().take_back(RUN)  # another process is late: it has nothing to go on with


def test_a_home_that_is_killed_before_it_leaves_has_the_run_as_ever(scene, monkeypatch):
    monkeypatch.setattr(HandingOver, "_record", killed)
    with pytest.raises(KeyboardInterrupt):
        scene.hand_over(scene.begins)
    assert (scene.row["away"], scene.sent) == (None, [])
    scene.home.database.release(scene.lease, time.time())
    assert scene.is_free()


def test_a_home_that_is_cut_off_for_longer_than_every_lease_finds_its_run_driven(scene, monkeypatch):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    clock_s = type(database).clock_s
    monkeypatch.setattr(type(database), "clock_s", lambda self: clock_s(self) + 7 * 86_400)
    assert not scene.is_free()
    publication.publish()
    scene.away(LOST_S).take_back(RUN)  # the store dates what was said, not the home
    assert (scene.row["state"], scene.row["away"] is None) == ("RUNNING", False)
    assert scene.home.brief(RUN)["driven"]
    assert not scene.is_free()


def test_who_follows_a_run_goes_on_while_its_store_is_out_of_reach(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    scene.away().look(RUN)
    database = scene.home.database
    clock_s, state = type(database).clock_s, DriverStore.state
    monkeypatch.setattr(type(database), "clock_s", lambda self: clock_s(self) + 7 * 86_400)
    monkeypatch.setattr(DriverStore, "state", refused)
    with pytest.raises(PublishError):
        scene.away(lost_s=-1).look(RUN)
    assert scene.home.brief(RUN)["driven"]  # as far as anybody knows
    driver = scene.home.brief(RUN)["driver"]
    assert driver["state"] == "silent"
    assert driver["machine"]
    assert driver["silent_s"] > 6 * 86_400
    monkeypatch.setattr(DriverStore, "state", state)
    scene.away(lost_s=-1).look(RUN)
    monkeypatch.setattr(DriverStore, "state", refused)
    assert not scene.home.brief(RUN)["driven"]
    monkeypatch.setattr(DriverStore, "state", state)
    scene.away(LOST_S).look(RUN)  # it was late
    assert scene.home.brief(RUN)["driven"]


@pytest.mark.parametrize("has_given_back", [False, True])
def test_a_machine_is_lost_while_it_ends_and_the_home_gives_back_what_is_left(
    scene, monkeypatch, has_given_back
):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    row = ClusterRow("c-1", "aws", scene.home.home.identity(), ClusterState.ACTIVE, "{}")
    database.put_cluster(lease, row, time.time())
    over = RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED, "well")
    database.commit(lease, [over], time.time())
    publication.close(None)
    if has_given_back:
        publication.finish()
    else:
        scene.away().look(RUN)
        assert (scene.row["state"], scene.row["away"] is None) == ("DONE", False)  # it may still work
    ended = []
    monkeypatch.setattr(clusters, "end_clusters", lambda *given: ended.append(given[3]) or killed())
    with pytest.raises(KeyboardInterrupt):
        scene.away(lost_s=-1).take_back(RUN)
    assert scene.row["away"] is not None  # what comes next does it again
    monkeypatch.setattr(clusters, "end_clusters", lambda *given: ended.append(given[3]))
    scene.away(lost_s=-1).take_back(RUN)
    assert len(ended) > 1
    assert all(each == ["c-1"] for each in ended)
    assert (scene.row["state"], scene.row["reason"], scene.row["away"]) == ("DONE", "SUCCEEDED", None)


def test_a_driver_that_was_killed_goes_on_where_it_was(scene):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    publication.publish()
    database.release(lease, time.time())
    again = scene.driver()
    assert again.settle(scene.last[-1])
    database, lease, publication = scene.drives(again)
    publication.begin()
    database.commit(lease, [RunChange(State.RUNNING, State.STOPPING)], time.time())
    publication.publish()
    scene.away().look(RUN)
    states = [event["after"] for event in scene.home.events(RUN)]
    assert states == ["WAITING", "RUNNING", "STOPPING"]


def test_a_driver_that_was_killed_between_its_news_and_its_state_publishes_them_once(scene, monkeypatch):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    publication._ended.set()  # its thread would publish for it
    publication._beating.join()
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    with monkeypatch.context() as patched:
        patched.setattr(DriverStore, "put_state", killed)
        with pytest.raises(KeyboardInterrupt):
            publication.publish()
    scene.away().look(RUN)
    assert scene.row["state"] == "WAITING"  # nobody has said that its news are whole
    database.release(lease, time.time())
    again = scene.driver()
    assert again.settle(scene.last[-1])
    scene.drives(again)[2].begin()
    for _ in range(2):
        scene.away().look(RUN)
    assert scene.row["state"] == "RUNNING"
    assert [event["after"] for event in scene.home.events(RUN)] == ["WAITING", "RUNNING"]


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_home_that_is_killed_while_it_brings_news_brings_the_rest_once(scene, monkeypatch, written):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    for before, after in ((State.WAITING, State.RUNNING), (State.RUNNING, State.STOPPING)):
        database.commit(lease, [RunChange(before, after)], time.time())
        publication.publish()
    bring, calls = run_transfer.bring, []

    def brought(*given, **more):
        calls.append(given)
        return killed() if len(calls) > written else bring(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(run_transfer, "bring", brought)
        with pytest.raises(KeyboardInterrupt):
            scene.away().look(RUN)
    for _ in range(2):
        scene.away().look(RUN)
    assert [event["after"] for event in scene.home.events(RUN)] == ["WAITING", "RUNNING", "STOPPING"]
    assert scene.row["state"] == "STOPPING"


def test_secrets_are_sealed_with_a_key_of_the_run_alone(scene):
    scene.hand_over(scene.begins)
    (sealed,) = scene.last[-1].rows.private
    theirs = SealingKey.of(scene.drivers[-1]._service.home.root, scene.drivers[-1]._environ)
    ours = SealingKey.of(scene.home.home.root, scene.environ)
    assert theirs.key != ours.key
    service = scene.drivers[-1]._service
    assert service.replicas.kept_secrets(service.database.run_row(RUN), scene.drivers[-1]._environ) == {
        "TOKEN": "hush"
    }
    assert "hush" not in json.dumps(sealed)


@pytest.mark.parametrize(
    ("provider", "store", "why"),
    [("local", "s3://b", "rents no machine"), ("hosts", "s3://b", "rents no machine"),
     ("aws", "file:///store", "on this machine"), ("im", "s3://b", "by this home only")],
)  # fmt: skip
def test_what_cannot_be_driven_elsewhere_is_told(provider, store, why):
    assert why in why_not(RECIPE.model_copy(update={"provider": provider}), store, ())


ON_DEMAND = SimpleNamespace(
    roles=[SimpleNamespace(rentals=[SimpleNamespace(spot=False, region="r-1", provider="aws")])]
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bake": True}, "bake: an image is made"),
        ({"sinks": {"mlflow": {"url": "https://m.example.org", "experiment": "e"}}}, "sinks: what tasks"),
        ({"sinks": {"wandb": {"project": "p", "key": "WANDB_API_KEY"}}}, "sinks: what tasks"),
        ({"experiments": {"main": {"command": "serve", "serve": {"port": 8000}}}}, "main.serve: a service"),
        ({}, ""),
    ],
)
def test_what_needs_this_home_is_not_driven_elsewhere(changes, why):
    found = why_not(Recipe.from_dict({**WRITTEN, **changes}), "s3://b", [ON_DEMAND])
    assert why in found if why else found == ""


def test_keys_of_another_profile_are_sent_if_one_is_named(tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    file.write_text("[narrow]\naws_access_key_id = AKIANARROW\naws_secret_access_key = hush\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    environ = {"AWS_ACCESS_KEY_ID": "AKIAWIDE", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    narrow = driver_environment({**environ, "TRAINMASTER_DRIVER_PROFILE": "narrow"}, "aws", "gs://b")
    assert {name: value for name, value in narrow.items() if "KEY" in name or "TOKEN" in name} == {
        "AWS_ACCESS_KEY_ID": "AKIANARROW", "AWS_SECRET_ACCESS_KEY": "hush"
    }  # fmt: skip
    assert driver_environment(environ, "aws", "gs://b")["AWS_SESSION_TOKEN"] == "t"
    with pytest.raises(UsageError, match="TRAINMASTER_DRIVER_PROFILE"):
        driver_environment({"TRAINMASTER_DRIVER_PROFILE": "missing"}, "aws", "gs://b")


class Sts:
    """Gives keys of a role for an hour, with a policy."""

    def __init__(self, refuses=False):
        self.asked = []
        self.refuses = refuses

    def assume_role(self, **wanted):
        self.asked.append(wanted)
        if self.refuses or wanted["DurationSeconds"] > 3600:
            words = "AccessDenied" if self.refuses else "DurationSeconds exceeds the MaxSessionDuration"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": words}}, "AssumeRole")
        return {"Credentials": {"AccessKeyId": "ASIA1", "SecretAccessKey": "s2", "SessionToken": "t2"}}


ROLE = "arn:aws:iam::123456789012:role/drivers"


def test_keys_of_a_role_are_narrowed_to_the_run(scene, monkeypatch):
    sts = Sts()
    monkeypatch.setattr(boto3, "client", lambda *_, **__: sts)
    scene.environ["TRAINMASTER_DRIVER_ROLE"] = ROLE
    rentals = [{"instance_type": "m5.large"}]
    plan = {"plan": {"roles": [{"rentals": rentals, "larger": [{"instance_type": "m5.xlarge"}]}]}}
    row = ClusterRow(f"{RUN}.main", "aws", scene.home.home.identity(), ClusterState.ACTIVE, json.dumps(plan))
    scene.home.database.put_cluster(scene.lease, row, time.time())
    assert scene.hand_over(scene.begins)
    given = scene.sent[-1].environ
    assert [given[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")] == [
        "ASIA1", "s2", "t2"
    ]  # fmt: skip
    assert [wanted["DurationSeconds"] for wanted in sts.asked] == [43_200, 3_600]
    policy = sts.asked[-1]["Policy"]
    assert f'"aws:RequestTag/trainmaster:cluster":"{RUN}.*"' in policy
    assert '"ec2:InstanceType":["m5.large","m5.xlarge"]' in policy
    assert "rent and end what bears this run's tags" in sent_to_machine(RECIPE, scene.environ)[0]


def test_a_role_that_cannot_be_assumed_leaves_the_run_at_home(scene, monkeypatch):
    monkeypatch.setattr(boto3, "client", lambda *_, **__: Sts(refuses=True))
    scene.environ["TRAINMASTER_DRIVER_ROLE"] = ROLE
    assert not scene.hand_over(scene.begins)
    assert (scene.row["away"], scene.sent) == (None, [])
    assert scene.is_free()


def test_what_is_sent_is_told_before(tmp_path):
    environ = {"TRAINMASTER_HOME": str(tmp_path), "TRAINMASTER_STORE": "gs://b", "AWS_ACCESS_KEY_ID": "AKIA1"}
    lines = sent_to_machine(RECIPE, environ)
    assert "AKIA1" in lines[0]
    assert "rent machines" in lines[0]
    assert "TRAINMASTER_DRIVER_ROLE" in lines[1]
    assert "onto its disk" in lines[2]


@pytest.mark.parametrize(
    ("provider", "more", "told"),
    [
        ("aws", {}, "your keys would be sent .* as wide as they are"),
        ("aws", {"TRAINMASTER_DRIVER_ROLE": ROLE}, None),
        ("aws", {"TRAINMASTER_DRIVER_PROFILE": "narrow"}, None),
        ("aws", {"TRAINMASTER_STORE": "gs://b", "TRAINMASTER_DRIVER_ROLE": ROLE}, "your keys of gs://b"),
        (
            "aws",
            {"TRAINMASTER_STORE": "gs://b", "TRAINMASTER_DRIVER_PROFILE": "narrow"},
            "your keys of gs://b",
        ),
        ("lab", {}, None),
    ],
)
def test_keys_as_wide_as_they_are_are_not_sent_without_being_asked(tmp_path, provider, more, told):
    environ = {"TRAINMASTER_HOME": str(tmp_path), "TRAINMASTER_STORE": "s3://b", **more}
    recipe = RECIPE.model_copy(update={"provider": provider})
    if told is None:
        check_narrow(recipe, environ)
        return
    with pytest.raises(UsageError, match=told) as refused:
        check_narrow(recipe, environ)
    assert "--send-keys" in refused.value.hint
    assert ("TRAINMASTER_DRIVER_ROLE" in refused.value.hint) == environ["TRAINMASTER_STORE"].startswith("s3")


def test_a_run_is_shown_as_it_was_while_its_store_cannot_be_read(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    monkeypatch.setattr(DriverStore, "state", refused)
    monkeypatch.setattr(AwayRuns, "_follow", lambda *_: None)  # it would go on for ever
    scene.away().follow(RUN)
    assert scene.row["state"] == "WAITING"
    with pytest.raises(PublishError):
        scene.away().take_back(RUN)  # nobody knows what drives: it stays away
    assert scene.row["away"] is not None


def test_who_looks_is_answered_while_the_line_to_the_store_stalls(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    gate, state = threading.Event(), DriverStore.state
    monkeypatch.setattr(DriverStore, "state", lambda store: gate.wait(60) and state(store))
    monkeypatch.setattr(AwayRuns, "_follow", lambda *_: None)
    away = AwayRuns(scene.home, scene.environ, answers_within_s=0.01)
    try:
        away.follow(RUN)
        away.look_at_all()
        assert not gate.is_set()
        assert scene.home.brief(RUN)["driver"]["machine"]
    finally:
        gate.set()
        for thread in threading.enumerate():
            if thread.name.startswith("looks at"):
                thread.join()


def test_what_is_wrong_with_a_run_that_is_away_is_told(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    monkeypatch.setattr(AwayRuns, "look", lambda *_: refuse(UsageError("it is driven by another machine")))
    with pytest.raises(UsageError, match="another machine"):
        scene.away().follow(RUN)


def test_who_leaves_waits_until_a_run_that_is_over_is_taken_back(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    away, joined = scene.away(), []
    following = SimpleNamespace(join=joined.append)
    away._leave(RUN, following)
    assert not joined  # it goes on without us
    database, publication = scene.drivers[-1]._service.database, scene.publications[-1]
    over = RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED, "well")
    database.commit(publication._lease, [over], time.time())
    publication.finish()
    monkeypatch.setattr(AwayRuns, "_give_back", lambda *_: away._leave(RUN, following))
    away.look(RUN)
    assert len(joined) == 2
    away._leave(RUN, following)
    assert len(joined) == 2


def refuse(error):
    raise error


def refused(_store):
    raise PublishError("the store does not answer")


def test_who_cancels_is_told_at_once_that_the_store_says_nothing(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    gate, state, asked = threading.Event(), DriverStore.state, []
    monkeypatch.setattr(DriverStore, "state", lambda store: gate.wait(60) and state(store))
    monkeypatch.setattr(away_runs, "_SLOW_S", 0.01)
    answers = [True, False]
    monkeypatch.setattr(ObjectStore, "answers", lambda _, limit_s: asked.append(limit_s) or answers.pop(0))
    try:
        with pytest.raises(
            PublishError, match=r"i-1 has heard .* does not answer\. At .* was WAITING"
        ) as told:
            AwayRuns(scene.home, scene.environ, answers_within_s=3.0).cancel(RUN)
        assert not gate.is_set()
        assert asked == [3.0, 3.0]  # one that is only slow is waited for
        assert f"`trainmaster cancel {RUN}` once more" in told.value.hint
    finally:
        gate.set()
        for thread in threading.enumerate():
            if thread.name.startswith("cancels"):
                thread.join()
