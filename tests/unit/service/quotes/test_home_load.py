"""Times of earlier runs, as they would be at the load of now: by the loads that the home has kept."""

import json
import os
from types import SimpleNamespace

import pytest

from trainmaster.advisor.market.load import LoadCorrection
from trainmaster.control.decide.effects import PhaseDuration
from trainmaster.control.loop.recording import RecordedPhase
from trainmaster.db import ClusterRow, Database
from trainmaster.service.quotes import home_load
from trainmaster.service.quotes.home_load import HomeLoad, PastDuration
from trainmaster.service.quotes.job_knowledge import is_quiet
from trainmaster.service.quotes.phase_records import phase_rows, phases_of, seen_of, waited_for
from trainmaster.spec import Recipe


@pytest.fixture
def database(tmp_path, accepted):
    found = Database(f"sqlite:///{tmp_path / 'd.db'}")
    for run, data in (("calm", {"load": 0.0}), ("busy", {"load": 20.0}), ("old", {"courses": {}})):
        accepted(found, run)
        found.put_forecast(run, json.dumps(data))
    yield found
    found.close()


@pytest.fixture
def accepted():
    from trainmaster.db import AcceptedRun

    def accept(database, run):
        new = AcceptedRun(run, "job", "{}", "/recipe.yaml", "lab", "/code", "file:///store", [("main", 1)])
        return database.create_run(new, 1.0)

    return accept


def seen(run, offer="local"):
    return PastDuration("job", run, 10.0, offer)


def test_a_time_of_a_calm_run_is_longer_now_and_one_of_a_busy_run_shorter(database):
    calm, same, busy = HomeLoad(5.0).shifts(database, [seen("calm"), seen("old"), seen("busy")])
    assert calm.factor > 1 > busy.factor
    assert calm.doubt > 0 > busy.doubt
    assert same == LoadCorrection()  # its home did not keep the load


def test_machines_elsewhere_do_not_follow_the_load_of_this_one(database):
    found = [seen("calm", "m4.large"), seen("calm", "host"), seen(None)]
    assert HomeLoad(50.0).shifts(database, found) == [LoadCorrection()] * 3
    (lab,) = HomeLoad(50.0).shifts(database, [seen("calm", "lab:m4.large")])
    assert lab.factor > 1


def test_what_is_no_run_keeps_the_load_at_which_it_was_measured(database):
    profile = PastDuration("job", None, 10.0, "local", 0.0)
    elsewhere = PastDuration("job", None, 10.0, "m4.large", 0.0)
    there, unchanged = HomeLoad(8.0).shifts(database, [profile, elsewhere])
    (run,) = HomeLoad(8.0).shifts(database, [seen("calm")])
    assert there == run
    assert there.factor > 1
    assert there.doubt > 0
    assert unchanged == LoadCorrection()


def test_a_gang_of_a_lab_that_mostly_waits_follows_the_load_less(database):
    there = [seen("calm", "lab:m4.large")]
    (unknown,) = HomeLoad(50.0).shifts(database, there)
    (waiting,) = HomeLoad(50.0).shifts(database, there, {"lab": 0.01, "local": 1.0})
    assert waiting.factor < 1.03 < unknown.factor
    assert waiting.doubt < unknown.doubt / 2


def test_the_load_of_a_run_is_asked_for_once(database, monkeypatch):
    asked = []
    forecasts = database.forecasts
    monkeypatch.setattr(database, "forecasts", lambda runs: asked.extend(runs) or forecasts(runs))
    for _ in range(3):
        HomeLoad(5.0).shifts(database, [seen("calm"), seen("busy")])
    assert sorted(asked) == ["busy", "calm"]


def test_what_this_machine_does_and_what_a_lab_does_is_learnt_apart(database):
    slower = [PastDuration("job", run, s, "local") for run, s in (("calm", 1.0), ("busy", 30.0))] * 20
    same = [PastDuration("job", run, 9.0, "lab:m4.large") for run in ("calm", "busy")] * 20
    shifts = HomeLoad(20.0).shifts(database, slower + same)
    assert shifts[0].factor > 8
    assert shifts[len(slower)].factor < 1.2


def test_where_no_wait_was_seen_there_is_nothing_to_shift(database):
    assert waited_for(database, "lab", load=HomeLoad(3.0)) == ()


def test_a_wait_is_that_of_the_smallest_machine(database, monkeypatch):
    """Small machines boot more slowly, and all had to be there."""
    machines = [
        {"rental": {"instance_type": each}, "has_joined": True, "seat": f"worker-{n}"}
        for n, each in enumerate(("large", "large", "small"))
    ]
    data = json.dumps({"asked_at": 0.0, "machines": machines, "plan": {"name": "main", "roles": []}})
    row = {"data": data, "waited_s": 26.0, "id": "calm.main"}
    monkeypatch.setattr(database, "cluster_waits", lambda _: [row])
    offers = [
        SimpleNamespace(instance_type="large", vcpus=2),
        SimpleNamespace(instance_type="small", vcpus=1),
    ]
    (known,) = waited_for(database, "lab", offers, load=HomeLoad(1.0))
    assert (known.offer, known.machines) == ("lab:small", 3)
    (blind,) = waited_for(database, "lab", load=HomeLoad(1.0))
    assert blind.offer == "lab:large"


def test_a_wait_is_without_that_for_hosts_that_others_held(database, monkeypatch):
    machines = [{"seat": "worker-0", "rental": {}, "is_over": True, "asked_at": at} for at in (5.0, 20.0)]
    machines.append({**machines[0], "has_joined": True, "asked_at": 95.0, "started_at": 96.0})
    data = json.dumps({"asked_at": 5.0, "machines": machines, "plan": {"name": "main", "roles": []}})
    row = {"data": data, "waited_s": 92.0, "id": "calm.main"}
    monkeypatch.setattr(database, "cluster_waits", lambda _: [row])
    (own,), (queued,), (rented,) = (
        waited_for(database, each, load=HomeLoad(0.0)) for each in ("hosts", "slurm", "lab")
    )
    assert (own.queued_s, queued.queued_s, rented.queued_s) == (90.0, 91.0, 0.0)
    assert own.seconds == pytest.approx(2.0)


def test_waits_with_another_engine_count_where_there_are_none_with_this_one(database, monkeypatch):
    rows = [
        {
            "data": json.dumps({"plan": {"name": "main", "roles": [], "engine": engine}}),
            "waited_s": waited_s,
            "id": "r.main",
        }
        for engine, waited_s in (("ssh", 1.5), ("ssh", 1.6), ("ray", 7.0))
    ]
    monkeypatch.setattr(database, "cluster_waits", lambda _: rows)

    def waits(engine: str) -> int:
        return len(waited_for(database, "lab", load=HomeLoad(0.0), engine=engine))

    assert [waits(engine) for engine in ("ssh", "ray", "of_another")] == [2, 1, 3]
    assert waits("auto") == 2, "so few machines are joined by SSH"


def test_a_wait_is_at_the_load_of_the_run_that_waited_whoever_found_its_machines_warm(database, accepted):
    machine = {"rental": {"instance_type": "large"}, "has_joined": True, "seat": "worker-0"}
    data = {"asked_at": 0.0, "machines": [machine], "plan": {"name": "main", "roles": []}}
    lease = accepted(database, "taker")
    cluster = ClusterRow("busy.main", "lab", "home", "ACTIVE", json.dumps(data), waited_s=26.0)
    database.put_cluster(lease, cluster, 1.0)
    (known,) = waited_for(database, "lab", load=HomeLoad(0.0))
    assert known.seconds < 20.0


GONE = {"reason": "it is gone"}


def lease(until):
    """Noted as its end, in seconds as those of the spans below."""
    return {"leased_until": 1000.0 + until}


LOST = {
    "taken back after a notice": ([(0, 40, 0, {"is_leaving": True}), (30, 99, 0, {})], 1),
    "gone without one": ([(0, 99, 1, {}), (0, 40, 0, {}), (55, 99, 0, {})], 1),
    "given back by a run that went on soon": ([(0, 40, 0, {}), (0, 40, 1, {}), (60, 99, 0, {})], 0),
    "the only one, of which nothing was noted": ([(0, 40, 0, {}), (60, 99, 0, {})], 0),
    "the only one, gone within its lease": ([(0, 40, 0, GONE | lease(1100.0)), (60, 99, 0, {})], 1),
    "the only one, gone with its lease": ([(0, 40, 0, GONE | lease(200.0)), (60, 99, 0, {})], 0),
    "the only one, given back": ([(0, 40, 0, {"reason": "", **lease(1100.0)}), (60, 99, 0, {})], 0),
    "the only one, never a node": (
        [(0, 40, 0, GONE | lease(1100.0) | {"has_joined": False}), (60, 99, 0, {})],
        0,
    ),
    "slow, and replaced": ([(0, 99, 1, {}), (0, 40, 0, {"slow_at": 20.0}), (20, 99, 0, {})], 0),
    "too small, and replaced": (
        [(0, 99, 1, {}), (0, 40, 0, {"is_leaving": True, "is_too_small": True}), (42, 99, 0, {})],
        0,
    ),
    "not needed for a while": (
        [(0, 99, 1, {}), (0, 40, 0, {"is_leaving": True, "is_surplus": True}), (60, 99, 0, {})],
        0,
    ),
    "another kind": ([(0, 40, 0, {"is_leaving": True, "spot": False}), (30, 99, 0, {})], 0),
    "still there": ([(0, None, 0, {}), (0, None, 1, {})], 0),
}


@pytest.mark.parametrize("case", LOST)
def test_lost_machines_are_counted_with_how_long_all_were_there(database, monkeypatch, case):
    spans, lost = LOST[case]
    machines = [
        {
            "rental": {"instance_type": "large", "spot": more.get("spot", True)},
            "seat": f"worker-{seat}",
            "has_joined": True,
            "asked_at": 1000.0 + began,
            "started_at": 1000.0 + began,
            "ended_at": end and 1000.0 + end,
            "is_leaving": False,
            "slow_at": None,
            **more,
        }
        for began, end, seat, more in reversed(spans)
    ]
    data = json.dumps({"asked_at": 1000.0, "machines": machines, "plan": {"name": "main", "roles": []}})
    row = {"data": data, "waited_s": 10.0, "id": "calm.main"}
    monkeypatch.setattr(database, "cluster_waits", lambda _: [row])
    (known,) = waited_for(database, "lab", load=HomeLoad(0.0))
    assert (known.lost, known.spot) == (lost, True)
    assert known.machines == len({seat for *_, seat, _ in spans})
    mine = [end - began for began, end, _, more in spans if end and more.get("spot", True)]
    assert known.used_s == sum(mine)


def test_machines_elsewhere_are_quoted_as_from_a_calm_machine(database):
    busy = HomeLoad(20.0)
    assert busy.of(["lab", "aws"]) == busy.of(["local"]) == busy
    for elsewhere in (["aws"], ["slurm"], ["hosts"], ["gcp", "kubernetes"]):
        (shift,) = busy.of(elsewhere).shifts(database, [seen("busy")])
        assert shift.factor < 1
        assert busy.of(elsewhere).shifts(database, [seen("calm")]) == [LoadCorrection()]


@pytest.mark.parametrize(
    ("running", "blocked", "load"), [(9, 0, 6.0), (3, 2, 5.0), (1, 0, 1.0), (None, 0, 6.0)]
)
def test_what_has_just_ended_is_no_load(tmp_path, monkeypatch, running, blocked, load):
    now = tmp_path / "stat"
    now.write_text(f"cpu 1 2\nprocs_running {running}\nprocs_blocked {blocked}\n")
    monkeypatch.setattr(home_load, "_NOW", tmp_path / "none" if running is None else now)
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 1.0, 1.0))
    assert HomeLoad.now() == HomeLoad(load)


def test_where_no_load_is_known_nothing_is_shifted(database, monkeypatch):
    def unknown():
        raise OSError("no load average here")

    monkeypatch.setattr("os.getloadavg", unknown)
    assert HomeLoad.now().shifts(database, [seen("calm"), seen("busy")]) == [LoadCorrection()] * 2
    assert HomeLoad.now().of(["local"]).load is None
    assert not is_quiet(unknown)


def test_a_setup_that_is_never_the_same_twice_shows_what_the_load_does(database):
    for number in range(12):
        run, seconds = ("calm", 10.0) if number % 2 else ("busy", 40.0)
        took = PhaseDuration("setup", f"content {number}", seconds)
        database.add_measurement(*phase_rows(run, [RecordedPhase(f"{number}", "main", took, "local", 1.0)]))
    calm, busy = (
        [each.seconds for each in seen_of(database, "setup", "new", HomeLoad(load))] for load in (0.0, 20.0)
    )
    assert max(calm) < 16
    assert min(busy) > 25


@pytest.mark.parametrize("seen_before", [0, 1])
def test_a_new_setup_is_expected_to_take_longer_while_this_machine_is_busy(database, tmp_path, seen_before):
    """Of an idle machine's guess it was told by half too short at a load of ten a core."""
    for number in range(seen_before):
        took = PhaseDuration("setup", f"content {number}", 10.0)
        database.add_measurement(*phase_rows("calm", [RecordedPhase("a", "main", took, "local", 1.0)]))
    (tmp_path / "code").mkdir()
    text = "name: job\nprovider: {}\nexperiments: {{main: {{command: 'true', setup: pip install x}}}}\n"
    home = SimpleNamespace(cache=tmp_path)

    def expected_s(provider, load, offer):
        recipe = Recipe.from_text(text.format(provider), directory=tmp_path / "code")
        service = SimpleNamespace(database=database, home=home, team=None)
        phases = phases_of(service, recipe, {}, load=HomeLoad(load))["main"]
        (setup,) = (each for each in phases.histories if each.name == "setup")
        return setup.belief(offer, stays=provider == "local")

    calm, busy = (expected_s("local", load, "local") for load in (0.0, 20.0))
    assert busy.median == pytest.approx(calm.median * (1 + 20 / os.cpu_count()) ** 0.3, rel=0.05)
    assert busy.spread > calm.spread
    if not seen_before:
        assert expected_s("hosts", 20.0, "host") == expected_s("hosts", 0.0, "host"), "others are not busy"
