"""What a home has written down of its clusters: also what 0.2.0 wrote, each place in its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster.providers.cluster_ledger import MachineLedger
from trainmaster.spec.errors import ProviderError
from trainmaster.spec.private_files import short_digest

TIMES = {"started_at": 5.0, "ended_at": 0.0, "reason": ""}
OLD: dict[str, dict[str, Any]] = {
    "kubernetes": {
        "place": "https://k research",
        "asked": {
            "t": {
                "token": "t", "role": "worker", "machine": "gpu", "group": ["t"], "is_made": True,
                "labels": {"node": "a"}, "pods": {"m": {"address": "10.0.0.1", "node": "n1", **TIMES}},
            }
        },
    },
    "openstack": {
        "asked": {
            "t": {
                "token": "t", "role": "worker", "flavor": "gpu", "count": 1, "labels": {"node": "a"},
                "servers": {"m": {"address": "1.1.1.1", "private_address": "10.0.0.1", "zone": "n1"} | TIMES},
            }
        },
    },
    "ray": {
        "requests": {"t": {"token": "t", "role": "worker", "machine": "gpu", "labels": {"node": "a"}}},
        "seats": {"m": {"id": "m", "token": "t", "about": {"address": "10.0.0.1", "user": "ray"}, **TIMES}},
    },
    "slurm": {
        "host_key": ["private half", "public half"],
        "jobs": {
            "t": {
                "id": "7", "token": "t", "role": "worker", "count": 2, "machine": "gpu", "lease_s": 900.0,
                "labels": {"node": "a"}, "leader": "", "nodes": ["n0", "n1"], "given_back": [0],
                "addresses": {"n1": "10.0.0.1"}, "batch": "n0", **TIMES,
            }
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("place", OLD)
def test_what_an_earlier_version_wrote_is_known(tmp_path: Path, place: str) -> None:
    """Machines of a run that goes on under the next version are the same ones."""
    written = {"cluster": "c", **OLD[place]}
    (tmp_path / f"cluster-{short_digest('c')}.json").write_text(json.dumps(written))
    ledger = MachineLedger(tmp_path)
    known = ledger.of("c")
    ((asked, id, machine),) = known.left
    assert (asked.token, asked.role, asked.machine, asked.is_made) == ("t", "worker", "gpu", True)
    assert asked.labels == {"node": "a"}
    assert (machine.private_address, machine.started_at) == ("10.0.0.1", 5.0)
    assert id == ("7.1" if place == "slurm" else "m")
    assert machine.where == ("" if place == "ray" else "n1")
    if place == "slurm":
        given_back = known.machines[0][2]
        assert (given_back.reason, given_back.ended_at) == ("it was given back", 5.0), (
            "never before its start"
        )
        assert asked.about == {"job": "7", "leader": "", "batch": "n0"}
        assert known.about == {"private": "private half", "public": "public half"}
    if place == "kubernetes":
        assert known.about == {"place": "https://k research"}
    ledger.put(known)
    assert ledger.all() == [known]


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    """What is lost there may cost money."""
    (tmp_path / f"cluster-{short_digest('c')}.json").write_text('{"asked": 7')
    with pytest.raises(ProviderError, match="is damaged") as refused:
        MachineLedger(tmp_path, hint="Look there.").of("c")
    assert refused.value.hint == "Look there."
