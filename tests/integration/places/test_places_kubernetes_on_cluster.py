"""A pod drives the run that it is of; the home may be off: rows on the double, and on a real Kubernetes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("asyncssh", reason="asyncssh is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from kubernetes_places import KubernetesAccount, account_of, check_clean, kubernetes, lost_node, renter_of
from place_runs import (
    COUNTED,
    MOVED,
    MOVED_ROWS,
    cross,
    drive_while_home_is_off,
    keep_for_the_next,
    moved,
    moving,
    serve,
)
from renter import Renter, Renting, drivers

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.private_kubernetes import ADDRESS, SERVICE_ACCOUNT
from trainmaster.testing.private_s3 import PrivateS3

__all__ = ["kubernetes"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="pods of the double need namespaces, and these root"),
    pytest.mark.timeout(600),
    pytest.mark.places,
    pytest.mark.s3,
]


@pytest.fixture(scope="module")
def store(kubernetes: Any) -> Iterator[tuple[PrivateS3, str]]:
    """A store, and its URL that every pod reaches."""
    with PrivateS3() as s3:
        if isinstance(kubernetes, KubernetesDouble):
            yield s3, s3.url
            return
        with CountingProxy(s3.url, ADDRESS) as line:
            yield s3, line.url


@pytest.fixture
def account(kubernetes: Any, tmp_path: Path) -> KubernetesAccount:
    """Who may use a namespace; the real one has a service account, which pods ask the API server as."""
    account = account_of(kubernetes, tmp_path)
    settings = account.home / "kubernetes.yaml"
    text = settings.read_text() + "  dear: {cpus: 0.7, memory: 300MB, usd_per_hour: 3}\n"
    if not isinstance(kubernetes, KubernetesDouble):
        text = text.replace("volumes: {", f"volumes: {{{tmp_path}: {tmp_path}, ")
        text = f"service_account: {SERVICE_ACCOUNT}\n{text}"
    settings.write_text(text)
    return account


@pytest.fixture
def user(account: KubernetesAccount, store: tuple[PrivateS3, str], tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there."""
    s3, url = store
    for user in renter_of(account, tmp_path):
        user.env |= {**s3.environment(url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        yield user


def driven(user: Renter, go: Path, steps: int) -> tuple[Renting, int]:
    """A gang of two that has saved, and the process that drives it."""
    recipe = user.recipe(COUNTED.format(machine="driving", go=go, steps=steps))
    going, driver = moved(user, "kubernetes", recipe)
    go.touch()
    going.until(lambda: user.saved_at(going.run), "a checkpoint")
    return going, driver


@contextlib.contextmanager
def going_pod(account: KubernetesAccount, pod: str, how: str) -> Iterator[None]:
    """A pod goes; its node comes back afterwards."""
    if how == "with its node":
        with lost_node(account.kubernetes, pod):
            yield
        return
    account.kubernetes.evict(pod, grace_s=0 if how == "lost" else None)
    yield


def test_pods_drive_while_their_home_is_off(user: Renter, account: KubernetesAccount, tmp_path: Path) -> None:
    """The driver is killed and started again, and the home sees the end; nothing of it stays."""
    go = tmp_path / "go"

    def let_go(_: str) -> None:
        assert len(set(account.kubernetes.left())) == 2
        go.touch()

    drive_while_home_is_off(user, "kubernetes", "driving", go, let_go)
    check_clean(account)


@pytest.mark.parametrize("how", ["lost", "evicted", "with its node"])
def test_the_pod_that_drives_goes(user: Renter, account: KubernetesAccount, tmp_path: Path, how: str) -> None:
    """Verbs at home work before; then the home goes on with it, and ends it with all that it has."""
    going, _ = driven(user, tmp_path / "go", 4000)
    run = going.run
    going.until(lambda: "step=" in user.call("status", run).stdout, "what its driver publishes")
    said = user.call("exec", run, "worker-1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX; exit 3", code=3)
    assert said.stdout == "1\n"
    assert json.loads(user.call("status", run, "--json").stdout)["driver"]["state"] == "working"
    pods = set(account.kubernetes.left())
    nodes = {each: account.kubernetes.node_of(each) for each in pods}
    driving = user.machines(run)["worker-0"]
    with going_pod(account, driving, how):
        going.until_said("it goes on, driven from here in the background")
        going.until(lambda: len(user.starts(run)) > 1, "its second attempt")
    assert max(step for _, step in user.starts(run)) > 0, "it goes on from a checkpoint"
    # A pod of the test before that still ends may have both of them put on one node.
    lost = {each for each in pods if how == "with its node" and nodes[each] == nodes[driving]} | {driving}
    assert pods & set(account.kubernetes.left()) == pods - lost, "the pod that is left is worked on"
    user.call("cancel", run)
    assert going.end(code=None)["reason"] == "CANCELLED"
    check_clean(account)


@pytest.mark.parametrize("how", ["lost", "evicted", "with its node"])
def test_another_pod_goes(user: Renter, account: KubernetesAccount, tmp_path: Path, how: str) -> None:
    """The pod that drives asks for another one, and goes on from a checkpoint; its home is off."""
    going, driver = driven(user, tmp_path / "go", 1500)
    run = going.run
    going.kill()
    with going_pod(account, user.machines(run)["worker-1"], how):
        again = user.start("resume", run, "--json")
        again.until_said("driven by another process")
        again.until(lambda: len(user.starts(run)) > 1, "its second attempt")
    assert drivers(run) == [driver]
    assert again.end()["reason"] == "SUCCEEDED", again.text
    assert max(step for _, step in user.starts(run)) > 0
    check_clean(account)


@pytest.mark.parametrize("name", MOVED_ROWS)
def test_crossing(user: Renter, account: KubernetesAccount, name: str) -> None:
    """It ends as it does where its home drives."""
    cross(user, "kubernetes", moving(MOVED_ROWS[name], "driving"))
    check_clean(account)


def test_parameter_servers(user: Renter, account: KubernetesAccount) -> None:
    """The first pod drives them, and has a member of its own."""
    serve(user, "kubernetes", "driving", lambda: sorted(account.kubernetes.left()), *MOVED)
    check_clean(account)


def test_pods_that_are_kept_have_the_next_run(user: Renter, account: KubernetesAccount) -> None:
    """The same pods, which a driver gives to the next one."""
    keep_for_the_next(user, "kubernetes", "driving", lambda: sorted(account.kubernetes.left()), *MOVED)
    check_clean(account)
