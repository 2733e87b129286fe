"""What an operating system says is asked of a rented machine, or of its provider when it does not answer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from trainmaster.cluster.member_places import PLACES
from trainmaster.control.task.layout import RunFiles
from trainmaster.service.runs import system_logs
from trainmaster.service.runs.member_ways import SshWay
from trainmaster.service.runs.system_logs import fetch_system_log
from trainmaster.spec.errors import NotFoundError, ProviderError


@pytest.fixture
def rented(tmp_path, monkeypatch):
    """A run on two machines of the lab, each with an attempt; `client` stands for OpenSSH's."""
    files = RunFiles(tmp_path)
    found = SimpleNamespace(client='eval "exec $1"', shown={"i-1": "panic\n"}, home=files, provider="lab")
    for attempt, machine in enumerate(("i-1", "i-0"), 1):
        directory = files.attempt("r", "train", 0, attempt).directory
        directory.mkdir(parents=True)
        (directory / PLACES).write_text(json.dumps({"worker-0": machine}))

    def find_way(service, run, member, *_, **__):
        if member == "i-9":
            raise NotFoundError("r has no machine 'i-9'", "")
        machine = "i-1" if member and member.endswith("1") else "i-0"
        return SshWay(machine, ("sh", "-c", found.client), "host", "home", found.provider)

    machines = [
        SimpleNamespace(id=name, seat=seat) for name, seat in (("i-1", "worker-1"), ("i-0", "worker-0"))
    ]
    record = SimpleNamespace(
        id="r.train", provider="lab", machines=machines, name_of=lambda seat: f"node of {seat}"
    )
    provider = SimpleNamespace(console=lambda cluster, machine: found.shown.get(machine, ""))
    monkeypatch.setattr(system_logs, "find_way", find_way)
    monkeypatch.setattr("trainmaster.cluster.record.readable", lambda *_: [record])
    monkeypatch.setattr("trainmaster.providers.plugins.get_provider", lambda *_: provider)
    row = found.row = {"provider": "lab", "team": None}
    found.secrets = {}
    monkeypatch.setattr(system_logs, "stored_recipe", lambda _: None)
    team = SimpleNamespace(secrets_of=lambda *_: {"train": found.secrets})
    found.service = SimpleNamespace(
        database=SimpleNamespace(run_row=lambda _: row, clusters_of=lambda _: []),
        home_if_here=lambda _: found.home,
        access_to=lambda *_: None,
        of_team=lambda _: team,
        replicas=SimpleNamespace(kept_secrets=lambda *_: {}),
    )
    return found


def fetch(rented, member=None):
    return fetch_system_log(rented.service, "r", member, {"PATH": "/usr/bin:/bin"})


def kept(tmp_path):
    return {path.parent.name: path.name for path in tmp_path.rglob("system-*.log")}


def test_a_machine_that_answers_is_asked_and_it_is_kept_with_its_attempt(rented, tmp_path):
    said = fetch(rented, "i-1")
    assert "UTC" in said or ":" in said
    assert "does not" not in said
    assert kept(tmp_path) == {"1": "system-i-1.log"}
    rented.home = None  # driven elsewhere: it is only shown
    fetch(rented)
    assert kept(tmp_path) == {"1": "system-i-1.log"}


@pytest.mark.parametrize("member", ["i-1", "worker-1", "node of worker-1"])
def test_of_one_that_does_not_answer_its_provider_is_asked(rented, tmp_path, member):
    rented.client = "echo no route >&2; exit 255"
    assert fetch(rented, member) == "panic\n"
    assert kept(tmp_path) == {"1": "system-i-1.log"}


def test_the_values_of_secrets_are_taken_out_of_it(rented, tmp_path):
    rented.client, rented.secrets = "exit 255", {"TOKEN": "hunter22"}
    rented.shown["i-1"] = "setup: curl -H hunter22\n"
    assert fetch(rented, "i-1") == "setup: curl -H ***\n"
    (file,) = tmp_path.rglob("system-*.log")
    assert file.read_text() == "setup: curl -H ***\n"


def test_what_nobody_knows_is_said(rented):
    rented.client, rented.shown = "echo no route >&2; exit 255", {}
    with pytest.raises(ProviderError, match="i-1 of r cannot be asked: no route"):
        fetch(rented, "i-1")
    with pytest.raises(NotFoundError, match="no machine 'i-9'"):
        fetch(rented, "i-9")


def test_what_is_asked_goes_by_the_place_of_the_machine_and_not_by_the_first_of_the_run(rented):
    rented.row["provider"] = "hosts"  # it has no consoles, and its users may not read its log
    rented.client, rented.provider = "exit 255", "lab"
    assert fetch(rented, "i-1") == "panic\n"
    rented.client = 'echo "$1"'
    rented.provider = "hosts"
    of_host = fetch(rented, "i-1")
    rented.provider = "lab"
    assert fetch(rented, "i-1") != of_host


def test_a_machine_that_says_ever_more_is_cut_off(rented, monkeypatch):
    monkeypatch.setattr(system_logs, "_MOST_BYTES", 10_000)
    rented.client = "while :; do echo lines without end; done"
    assert len(fetch(rented, "i-1")) <= 10_000
    rented.client = "while :; do echo lines without end >&2; done"
    rented.shown = {}
    with pytest.raises(ProviderError, match="cannot be asked: lines"):
        fetch(rented, "i-1")
