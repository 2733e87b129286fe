"""What else of the house meets a Kubernetes: rows on the double, and on a real one where that is built."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from kubernetes_places import KubernetesAccount, account_of, check_clean, renter_of
from place_runs import (
    Crossing,
    cross,
    gang,
    keep_for_the_next,
    serve,
    train_as_a_team,
    until,
    until_step,
)
from renter import Renter

from trainmaster.testing.kubernetes_double import KubernetesDouble

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
        "echo never", "in this home only", "node", options=("--on-cluster",), code=2
    ),
}


@pytest.fixture(scope="module", params=["double", "real"])
def kubernetes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One for all tests."""
    if request.param == "double":
        with KubernetesDouble() as double:
            yield double
        return
    from trainmaster.testing.private_kubernetes import NoKubernetesError, PrivateKubernetes

    try:
        real = PrivateKubernetes.installed(2)
    except NoKubernetesError as error:
        pytest.skip(str(error))
    with real:
        yield real


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


def test_a_team_trains_on_a_server_that_has_an_account(
    user: Renter, account: KubernetesAccount, tmp_path: Path
) -> None:
    """Its member has neither login nor settings; the task has the team's secret, and nobody else's."""
    train_as_a_team(user, "kubernetes", tmp_path, "node", KUBECONFIG="/nowhere")
    check_clean(account)


def test_a_login_whose_time_is_over_ends_no_run(user: Renter, account: KubernetesAccount) -> None:
    """Refused is not dead: with a new login the run goes on in the same pods."""
    if not isinstance(account.kubernetes, KubernetesDouble):
        pytest.skip("the real one has certificates, which last")
    going = user.run(gang(user, 2, 300), provider="kubernetes")
    run = going.run
    until_step(user, run)
    pods = set(account.kubernetes.left())
    account.kubernetes.is_over = True
    try:
        time.sleep(20)
    finally:
        account.kubernetes.is_over = False
    assert set(account.kubernetes.left()) == pods
    assert going.end()["state"] == "DONE"
    check_clean(account)
