"""What else of the house meets a Kubernetes: rows on the double, and on a real one where that is built."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from kubernetes_places import KubernetesAccount, account_of, check_clean, kubernetes, lost_node, renter_of
from place_runs import (
    Crossing,
    cross,
    gang,
    have_two_homes,
    keep_for_the_next,
    serve,
    train_as_a_team,
    train_with_own_login,
    until,
    until_step,
)
from renter import Renter

from trainmaster.providers.base import Node, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.kubernetes.provider import kubernetes_provider
from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.transport.base import Target
from trainmaster.transport.kubernetes.pods import Pods, way_of

__all__ = ["kubernetes"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="pods of the double need namespaces, and these root"),
    pytest.mark.timeout(600),
    pytest.mark.places,
]
ROWS = {
    "volume": Crossing(
        'cat "$TRAINMASTER_DATA_IMAGES/deep/a"',
        "of the volume",
        "node",
        more="data: {images: {volume: images}}",
    ),
    "sweep": Crossing("echo rate {{rate}}", "rate 2", "node", more="parameters: {rate: [1, 2, 3]}"),
    "container": Crossing(
        "echo never", "kubernetes starts no containers", "node", more="container: busybox", code=2
    ),
    "cap": Crossing("sleep 600", "the run ends: it may cost", "dear", "{total: $0.6}", code=1),
    "a limit of waiting": Crossing("echo never", "no machines after 5 s", "wide", "{wait: 5s}", code=1),
    "driver on the cluster": Crossing(
        "echo never", "neither side could read", "node", options=("--on-cluster",), code=2
    ),
}


@pytest.fixture
def account(kubernetes: Any, tmp_path: Path) -> KubernetesAccount:
    """A new user of it."""
    return account_of(kubernetes, tmp_path)


@pytest.fixture
def user(account: KubernetesAccount, tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there."""
    yield from renter_of(account, tmp_path)


@pytest.mark.parametrize("name", ROWS)
def test_crossing(user: Renter, account: KubernetesAccount, name: str) -> None:
    """It ends as it does elsewhere."""
    settings = account.home / "kubernetes.yaml"
    dear = "  dear: {cpus: 0.1, memory: 300MB, usd_per_hour: 3}\n"
    settings.write_text(settings.read_text() + dear)
    cross(user, "kubernetes", ROWS[name])
    check_clean(account)


def test_a_gang_of_three(user: Renter, account: KubernetesAccount) -> None:
    """A pod each; nothing of it stays."""
    going = user.run(gang(user, 3, 20), provider="kubernetes")
    assert len(until(lambda: len(account.kubernetes.left()) == 3 and account.kubernetes.left(), 60)) == 3
    assert going.end()["state"] == "DONE"
    check_clean(account)


def test_parameter_servers(user: Renter, account: KubernetesAccount) -> None:
    """Three pods, all or none."""
    serve(user, "kubernetes", "node", lambda: sorted(account.kubernetes.left()))
    check_clean(account)


def test_machines_that_are_kept_have_the_next_run(user: Renter, account: KubernetesAccount) -> None:
    """The same pods; then they are given back."""
    keep_for_the_next(user, "kubernetes", "node", lambda: sorted(account.kubernetes.left()))
    check_clean(account)


def test_two_homes_have_one_account(user: Renter, account: KubernetesAccount, tmp_path: Path) -> None:
    """In one namespace."""
    have_two_homes(user, tmp_path / "other", "kubernetes", "node", lambda: sorted(account.kubernetes.left()))
    check_clean(account)


def test_a_team_trains_on_a_server_that_has_an_account(
    user: Renter, account: KubernetesAccount, tmp_path: Path
) -> None:
    """Its member has neither login nor settings; the task has the team's secret, and nobody else's."""
    train_as_a_team(user, "kubernetes", tmp_path, "node", KUBECONFIG="/nowhere")
    check_clean(account)


def test_a_team_trains_with_its_own_login(user: Renter, account: KubernetesAccount, tmp_path: Path) -> None:
    """With its own token and namespace, where the server has neither a login nor settings."""
    (tmp_path / "mia").mkdir()
    (account.home / "kubernetes.yaml").rename(tmp_path / "mia" / "kubernetes.yaml")
    kubeconfig = user.env.pop("KUBECONFIG")
    token = re.findall(r'"?token"?: "?([\w.-]{8,})', Path(kubeconfig).read_text())
    user.env["TRAINMASTER_WEBHOOK_NETWORKS"] = "127.0.0.1/32"
    train_with_own_login(user, "kubernetes", tmp_path, "node", token, KUBECONFIG=kubeconfig)
    check_clean(account)


def test_a_login_whose_time_is_over_ends_no_run(user: Renter, account: KubernetesAccount) -> None:
    """Refused is not dead: with a new token, in the same file, the run goes on in the same pods."""
    going = user.run(gang(user, 2, 300), provider="kubernetes")
    run = going.run
    until_step(user, run)
    pods = set(account.kubernetes.left())
    account.kubernetes.end_login()
    try:
        time.sleep(20)
    finally:
        account.kubernetes.log_in()
    assert set(account.kubernetes.left()) == pods
    assert going.end()["state"] == "DONE"
    check_clean(account)


@pytest.mark.parametrize("how", ["evicted", "deleted at once"])
def test_a_pod_goes(user: Renter, account: KubernetesAccount, how: str) -> None:
    """Another one comes, and the work goes on from a checkpoint."""
    going = user.run(gang(user, 2, 200), provider="kubernetes")
    run = going.run
    until_step(user, run)
    account.kubernetes.evict(user.machines(run)["worker-1"], grace_s=None if how == "evicted" else 0)
    going.until_said("is taken back" if how == "evicted" else "is lost", 200)
    assert going.end()["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0
    check_clean(account)


@pytest.mark.parametrize("how", ["it is silent", "it is deleted"])
def test_a_node_is_lost(user: Renter, account: KubernetesAccount, how: str) -> None:
    """What was there goes on elsewhere, before Kubernetes gives up its pod."""
    going = user.run(gang(user, 2, 300), provider="kubernetes")
    run = going.run
    until_step(user, run)
    with lost_node(account.kubernetes, user.machines(run)["worker-1"], is_deleted=how == "it is deleted"):
        going.until_said("is lost|is taken back", 240)
        assert going.end()["state"] == "DONE"
    assert max(step for _, step in user.starts(run)) > 0
    check_clean(account)


@pytest.mark.parametrize("how", ["it is silent", "it is deleted"])
def test_what_kubernetes_makes_of_a_pod_whose_node_is_lost(account: KubernetesAccount, how: str) -> None:
    """As long as nobody asks for anything: it has to go after its toleration, or is no more."""
    settings = account.home / "kubernetes.yaml"
    settings.write_text(settings.read_text().replace("grace: 20s", "grace: 2s"))
    provider = kubernetes_provider(ProviderPlace(account.home, "0123456789abcdef", account.env))
    provider.acquire("c", NodeRequest("worker", 1, "node", token="t"))

    def look() -> Node:
        (node,) = provider.nodes("c")
        return node

    until(lambda: look().state is NodeState.READY)
    seen = list[Node]()
    with lost_node(account.kubernetes, look().id, is_deleted=how == "it is deleted"):
        until(lambda: seen.append(look()) or seen[-1].state is NodeState.GONE, seen=lambda: seen[-1])
    assert seen[0].state is NodeState.READY, "nobody knows yet"
    leaving = [each.reason for each in seen if each.state is NodeState.LEAVING]
    if how == "it is deleted":
        assert not leaving
        assert seen[-1].reason == "somebody has deleted its pod"
    else:
        assert leaving[0].startswith("Marking for deletion Pod research/tm-")
    provider.release("c")
    check_clean(account)


def test_what_kubernetes_forgets_on_a_node_that_is_cut_off_ends_itself(account: KubernetesAccount) -> None:
    """It was deleted by force, and nobody can tell its node: its lease ends it, with all that runs in it."""
    provider = kubernetes_provider(ProviderPlace(account.home, "0123456789abcdef", account.env))
    provider.acquire("c", NodeRequest("worker", 1, "node", token="t", lease_s=40.0))
    (node,) = until(lambda: [each for each in provider.nodes("c") if each.state is NodeState.READY])
    mark = f"sleep 1000{time.time_ns()}"
    with Pods().connect(Target(node.id, node.address, way=way_of("", node.zone, account.env))) as pod:
        pod.run(f"setsid {mark} > /dev/null 2>&1 < /dev/null &")
    until(lambda: runs(mark), 10)
    kubernetes, lost = account.kubernetes, account.kubernetes.node_of(node.id)
    kubernetes.cut(lost)
    try:
        kubernetes.evict(node.id, grace_s=0)
        assert not kubernetes.left()
        assert runs(mark)
        until(lambda: not runs(mark), 90)
    finally:
        kubernetes.boot(lost)
        until(lambda: len(kubernetes.ready()) == 2, 120)
    provider.release("c")


def runs(command: str) -> bool:
    """Whether it does, in whichever pod: they are all on this machine."""
    words = command.replace(" ", "\0").encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if each.read_bytes().rstrip(b"\0") == words:
                return True
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pod_that_fills_its_disk_is_the_fault_of_the_task(
    user: Renter, account: KubernetesAccount, workers: int
) -> None:
    """It is tried again as often as the recipe says, and not twenty times more; Kubernetes' words say why."""
    if not isinstance(account.kubernetes, KubernetesDouble):
        pytest.skip("the kubelet here cannot tell how much disk pods use")
    going = user.run(gang(user, workers, 200), provider="kubernetes")
    run = going.run
    until_step(user, run)
    account.kubernetes.fill(user.machines(run)[f"worker-{workers - 1}"])
    said = "was ended: Evicted: Pod ephemeral .* exceeds the total limit of containers 1G; .* asks for more"
    going.until_said(said, 200)
    ended = going.end(code=1)
    assert ended["reason"] == "USER_ERROR"
    check_clean(account)


def test_the_server_is_away_for_a_minute(user: Renter, account: KubernetesAccount) -> None:
    """Unreachable is not dead: the run goes on, or goes on from its checkpoint, in the same pods."""
    going = user.run(gang(user, 2, 400), provider="kubernetes")
    run = going.run
    until_step(user, run)
    pods = set(account.kubernetes.left())
    account.kubernetes.stop_server()
    time.sleep(60)
    account.kubernetes.start_server()
    assert pods == set(account.kubernetes.left())
    assert going.end()["state"] == "DONE"
    check_clean(account)


def test_what_no_node_has_is_told_in_the_schedulers_words(user: Renter, account: KubernetesAccount) -> None:
    """And given back; who does not want to wait ends it."""
    account.settings("0s")
    going = user.run(gang(user, 2, 10, "wide"), provider="kubernetes")
    going.until_said("waits for|Insufficient cpu", 120)
    check_clean(account)
    going.interrupt()
    going.end(code=None)
    check_clean(account)


def test_a_quota_is_refused_before_anything_is_made(user: Renter, account: KubernetesAccount) -> None:
    """With its numbers."""
    account.kubernetes.pod_limit = 1
    try:
        done = user.call("run", gang(user, 2), "--provider", "kubernetes", "--yes", code=2)
    finally:
        account.kubernetes.pod_limit = None
    assert "allows 1 of pods" in done.stderr
    assert not account.kubernetes.left()


def test_a_driver_that_is_killed_finds_its_pods(user: Renter, account: KubernetesAccount) -> None:
    """Never more."""
    going = user.run(gang(user, 2, 200), provider="kubernetes")
    run = going.run
    until(lambda: len(account.kubernetes.left()) == 2, 60)
    pods = set(account.kubernetes.left())
    going.kill()
    again = user.start("resume", run, "--json")
    until_step(user, run)
    assert set(account.kubernetes.left()) == pods
    again.interrupt()
    again.end(code=None)
    check_clean(account)


def test_a_driver_that_never_comes_back_leaves_nothing(user: Renter, account: KubernetesAccount) -> None:
    """The switch of each pod needs no rights, and no driver."""
    going = user.run(gang(user, 2, 4000), provider="kubernetes", TRAINMASTER_NODE_LEASE="30s")
    until_step(user, going.run)
    going.kill()
    check_clean(account)
