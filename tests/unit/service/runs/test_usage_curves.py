"""Curves of the operating systems of nodes, from what the run's attempts have brought along."""

from __future__ import annotations

import json
from types import SimpleNamespace

from trainmaster.control.task.layout import Home
from trainmaster.db import queries
from trainmaster.service.runs.usage_curves import member_curves, node_curves


def look(node, at, **more):
    return json.dumps({"member": f"@{node}", "time": at, "disk_free_bytes": 5, **more}) + "\n"


def test_nodes_are_put_together_from_all_attempts(tmp_path, monkeypatch):
    home = Home(tmp_path, tmp_path / "cache", "file:///s", "sqlite://")
    files = {
        1: look("a", 10.0, network_sent_bytes=0) + look("b", 11.0, gpus=[{"utilisation": 1.0}]),
        2: look("a", 20.0, network_sent_bytes=500, cpu_percent=50.0)
        + '{"member": "worker-0"}\n{"member": "worker-1", "time": 20.0}\n{',
        3: None,
    }
    for number, text in files.items():
        place = home.attempt("r-1", "main", 0, number).directory
        place.mkdir(parents=True)
        if text is not None:
            (place / "samples.jsonl").write_text(text)
    attempts = [{"experiment": "main", "task": 0, "number": number} for number in files]
    monkeypatch.setattr(queries, "attempts", lambda *_: attempts)
    machines = [{"member": "worker-0", "machine": "node-1"}, {"member": "worker-1", "machine": "node-2"}]
    places = SimpleNamespace(machines=lambda *_: machines)
    a, b = node_curves(None, home, "r-1", SimpleNamespace(machines=lambda *_: []))
    assert (a["node"], a["times"], a["cpu_percent"]) == ("a", [10.0, 20.0], [None, 50.0])
    assert a["sent_bytes_per_s"] == [None, 50.0]
    assert (b["node"], b["disk_free_bytes"], b["gpus_busy"]) == ("b", [5], [1.0])
    unseen, named = node_curves(None, home, "r-1", places, 1)
    assert (unseen["node"], named["node"]) == ("b", "node-2"), "as `status` names a member's machine"
    assert named["times"] == [20.0]


def test_the_end_of_a_member_is_no_look_at_it():
    """Its last line has no memory, and the processor time of children that were waited for in no time."""
    first = {"time": 11.0, "seconds": 1.0, "cpu_seconds": 0.5, "rss_bytes": 9, "processes": 2}
    last = {"time": 12.01, "seconds": 2.01, "cpu_seconds": 3.5, "rss_bytes": 0, "processes": 0}
    curves = member_curves([first, {**first, "time": 12.0, "seconds": 2.0, "cpu_seconds": 1.0}, last], 9)
    assert curves["memory_bytes"] == [9, 9]
    assert curves["cpu_cores"] == [0.5, 0.5]
    assert member_curves([last], 9)["cpu_cores"] == [1.741], "all that is known of what was short"
