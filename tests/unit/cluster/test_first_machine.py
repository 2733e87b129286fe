"""Which machine drives a run `--on-cluster`: one that is up, on demand, and not about to go."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.member_places import MemberPlaces


def loop(cluster: str, machine: str, *, up: bool = True, spot: bool = False, **changes: Any) -> Any:
    rented = SimpleNamespace(
        id=machine, rental=SimpleNamespace(spot=spot), **{"is_leaving": False, **changes}
    )
    return SimpleNamespace(
        formation=SimpleNamespace(number=0, head=machine, first=machine) if up else None,
        record=SimpleNamespace(id=cluster, rented=(rented,)),
        accesses={machine: f"access to {machine}"},
        present={machine: f"access to {machine}"},
    )


@pytest.mark.parametrize(
    "other", [{"spot": True}, {"is_leaving": True}, {"up": False}], ids=lambda other: next(iter(other))
)
def test_a_driver_moves_to_a_machine_that_stays(tmp_path: Path, other: dict[str, bool]) -> None:
    loops = {"a": loop("c-1", "i-1", **other), "b": loop("c-2", "i-2")}
    executor = ClusterExecutor(
        cast("Any", loops), lambda *_: None, lambda _: None, MemberPlaces(tmp_path.joinpath)
    )
    assert executor.first_machine() == ("c-2", "access to i-2")
    loops["b"].present = {}
    assert executor.first_machine() is None


@pytest.mark.parametrize(
    ("up", "nodes", "leaves"), [(True, True, False), (False, True, False), (False, False, True)]
)
def test_a_run_leaves_a_place_only_while_none_of_its_clusters_has_a_node(
    tmp_path: Path, up: bool, nodes: bool, leaves: bool
) -> None:
    loops = {"a": loop("c-1", "i-1", up=up), "b": loop("c-2", "i-2", up=False)}
    loops["b"].accesses, loops["a"].elsewhere, loops["b"].elsewhere = {}, "", "there are none"
    if not nodes:
        loops["a"].accesses = {}
    executor = ClusterExecutor(
        cast("Any", loops), lambda *_: None, lambda _: None, MemberPlaces(tmp_path.joinpath)
    )
    assert executor.elsewhere == ("there are none" if leaves else "")
