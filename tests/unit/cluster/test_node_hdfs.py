"""Where an HDFS of a run is, which node joins it, and what follows when its NameNode is lost."""

import contextlib
import json
import re
import subprocess
from types import SimpleNamespace

import pytest

from trainmaster.cluster.node_files import data as node_data
from trainmaster.cluster.node_files.data import NodeData
from trainmaster.cluster.node_files.files import (
    NodePaths,
    end_mounts_command,
    mounted_runs,
    mounted_runs_command,
)
from trainmaster.cluster.node_files.hdfs import NodeHdfs
from trainmaster.cluster.node_files.worker_client import OrderError
from trainmaster.control.attempt.staged_data import addresses
from trainmaster.control.task.job_context import RelayError
from trainmaster.control.task.layout import Home
from trainmaster.objects.delegated_credentials import DelegatedCredentials
from trainmaster.spec import DataSource
from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import CommandError, Result, Target

URL = "s3://bucket/images"


class Cluster:
    """Nodes with daemons; a NameNode's machine may be wiped, and be silent."""

    def __init__(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
        self.home = Home(tmp_path / "home", tmp_path / "cache", "", "")
        self.nodes = [self.node(number) for number in range(3)]
        self.orders, self.told, self.failing = [], [], set()
        self.silent, self.made, self.short = False, 0, 0
        self.wiped, self.ends, self.unreachable = False, 0, set()
        self.hdfs = self.driver()

    def driver(self):
        paths = NodePaths(self.home, "r", "/tm")
        made = NodeHdfs(self.ask, self, paths, DelegatedCredentials(), lambda _: self.nodes, self.told.append)
        made._credentials = SimpleNamespace(environment=lambda _: {"AWS_ACCESS_KEY_ID": "id"})
        return made

    def node(self, number):
        return SimpleNamespace(
            id=f"n{number}", address=f"10.0.0.{number}", target=Target(f"n{number}", f"10.0.0.{number}")
        )

    def shell(self, node, command, timeout_s):
        if node.id in self.unreachable:
            raise CommandError(f"{node.id} does not answer")
        return Result(1 if self.silent else 0, json.dumps({"namenode": {"ends": self.ends}}), "")

    def ask(self, node, wanted):
        order = wanted.order
        self.orders.append((node.id, order["do"]))
        if node.id in self.failing:
            raise CommandError(f"{node.id} fails")
        if order["do"] == "stage":
            assert wanted.credentials
            return json.dumps([1, 1, order["count"] + self.short])
        if order["served"] and not (self.wiped and node.address == order["served"]["address"]):
            return json.dumps(order["served"])
        self.made += 1
        return json.dumps({"address": node.address, "rpc_port": 1, "http_port": 2, "id": str(self.made)})

    def context(self, url=URL):
        source = DataSource(url=url, stage="hdfs")
        experiment = SimpleNamespace(name="e", data={"images": source})
        return SimpleNamespace(
            home=self.home, run="r", experiment=experiment, variables={}, venv=None, staged=["images"], task=0
        )

    def provide(self, attempt="a", nodes=None, **options):
        self.orders.clear()
        context = self.context(**options)
        self.hdfs.provide(attempt, nodes or self.nodes[:2], context, "images")
        return addresses(context)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return Cluster(tmp_path, monkeypatch)


def test_all_nodes_join_and_copy_and_members_are_told_where(cluster):
    found = cluster.provide()
    assert cluster.orders[0] == ("n0", "hdfs")
    assert sorted(cluster.orders) == sorted((f"n{n}", what) for n in range(3) for what in ("hdfs", "stage"))
    assert found["TRAINMASTER_DATA_IMAGES"].startswith("hdfs://10.0.0.0:1/data/images-")
    assert found["TRAINMASTER_DATA_IMAGES_WEBHDFS"].startswith("webhdfs://10.0.0.0:2/data/images-")
    cluster.provide("b")
    assert cluster.orders == []


def test_a_next_driver_goes_on_with_it(cluster):
    before = cluster.provide()
    cluster.hdfs = cluster.driver()
    assert cluster.provide() == before
    assert cluster.made == 1


def test_a_node_that_came_later_joins_and_nothing_is_copied_again(cluster):
    cluster.provide()
    cluster.nodes = [*cluster.nodes[:2], cluster.node(7)]
    cluster.provide("b", nodes=cluster.nodes)
    assert cluster.orders[0] == ("n0", "hdfs")
    assert sorted(cluster.orders) == [("n0", "hdfs"), ("n1", "hdfs"), ("n7", "hdfs")]


def test_when_as_many_machines_are_gone_as_there_are_copies_all_is_looked_at_again(cluster):
    cluster.provide()
    cluster.nodes = cluster.nodes[:2]
    cluster.provide("b")
    assert cluster.orders == [], "there is another copy of all that was on one of them"
    cluster.nodes = [cluster.nodes[0], cluster.node(7)]
    cluster.provide("c", nodes=cluster.nodes)
    assert sorted(cluster.orders) == [(node, what) for node in ("n0", "n7") for what in ("hdfs", "stage")]
    cluster.provide("d", nodes=cluster.nodes)
    assert cluster.orders == []


def test_a_machine_that_is_gone_excuses_each_attempt_of_that_time_once(cluster):
    cluster.provide("a")
    cluster.unreachable = {"n2"}
    assert "has died on n2" in cluster.hdfs.lost("a", cluster.nodes)
    cluster.provide("b")
    assert cluster.hdfs.lost("b", cluster.nodes) == ""


def test_a_namenode_that_was_lost_is_told_and_all_is_staged_anew(cluster):
    cluster.provide()
    assert cluster.hdfs.lost("a", cluster.nodes) == ""
    cluster.silent = True
    assert "NameNode at 10.0.0.0:1 does not answer" in cluster.hdfs.lost("a", cluster.nodes[1:])
    cluster.silent, cluster.nodes = False, cluster.nodes[1:]
    found = cluster.provide("b", nodes=cluster.nodes)
    assert found["TRAINMASTER_DATA_IMAGES"].startswith("hdfs://10.0.0.1:1/")
    assert ("n2", "stage") in cluster.orders
    assert cluster.hdfs.lost("b", cluster.nodes) == ""


def test_a_daemon_that_has_died_and_runs_again_excuses_each_attempt_of_that_time_once(cluster):
    cluster.provide("a")
    cluster.provide("b")
    cluster.ends = 1
    assert "has died on n0" in cluster.hdfs.lost("a", cluster.nodes)
    assert "has died on n0" in cluster.hdfs.lost("b", cluster.nodes)
    cluster.provide("c")
    assert cluster.hdfs.lost("c", cluster.nodes) == ""


def test_a_namenode_whose_machine_was_wiped_is_another_one(cluster):
    cluster.provide()
    cluster.wiped = cluster.silent = True
    cluster.provide("b")
    assert cluster.made == 2
    assert "is made anew" in cluster.told[0]
    cluster.silent = False
    assert "was lost meanwhile" in cluster.hdfs.lost("a", cluster.nodes)


def test_only_nodes_of_the_attempt_must_join(cluster):
    cluster.failing = {"n2"}
    cluster.provide()
    assert ("n2", "stage") not in cluster.orders
    assert "n2 has no part of the HDFS" in cluster.told[0]
    with pytest.raises(CommandError):
        cluster.provide("b", nodes=cluster.nodes)


def test_a_share_that_is_missing_is_told(cluster):
    cluster.short = 2
    with pytest.raises(CommandError, match="3 of 5 objects"):
        cluster.provide()


def test_a_store_of_this_machine_cannot_be_staged(cluster):
    with pytest.raises(RelayError):
        cluster.provide(url="file:///somewhere")


def test_nobody_knows_where_before_it_was_staged(cluster):
    with pytest.raises(UsageError, match="not noted"):
        addresses(cluster.context())


def test_what_the_user_has_to_bring_is_not_tried_again(cluster):
    def provide(order, environment, hear):
        words = "there is no Hadoop for `stage: hdfs`. Name a directory."
        raise OrderError(cluster.node(0), words, "UsageError")

    cluster.worker = lambda node: contextlib.nullcontext(SimpleNamespace(provide=provide))
    node = cluster.node(0)
    node.python = "python3"
    data = NodeData(cluster, NodePaths(cluster.home, "r", "/tm"), DelegatedCredentials())
    with pytest.raises(UsageError, match="there is no Hadoop"):
        data.provide("a", [node], cluster.context(), "images", ())


@pytest.mark.parametrize("answers_after", [2, None])
def test_what_a_task_wrote_is_asked_for_until_the_namenode_answers_or_is_lost(
    cluster, monkeypatch, answers_after
):
    cluster.provide()
    now_s, orders = [0.0], []

    def provide(order, environment, hear):
        orders.append(order)
        if answers_after is not None and len(orders) > answers_after:
            return "1"
        raise OrderError(cluster.node(0), "nobody answers", "PublishError")

    monkeypatch.setattr(node_data.time, "sleep", lambda s: now_s.append(now_s.pop() + s))
    cluster.worker = lambda node: contextlib.nullcontext(SimpleNamespace(provide=provide))
    node = cluster.node(0)
    node.python = "python3"
    told = []
    paths = NodePaths(cluster.home, "r", "/tm")
    data = NodeData(cluster, paths, DelegatedCredentials(), told.append, clock=lambda: now_s[0])
    place = SimpleNamespace(output=lambda name, first: cluster.home.run_directory("r") / "output")
    context = SimpleNamespace(**{**vars(cluster.context()), "place": place, "members": ["worker-0"]})
    data.fetch_hdfs(node, context)
    assert {each["do"] for each in orders} == {"output"}
    assert orders[0]["path"] == "/output/e/0"
    assert orders[0]["directory"].endswith("/output/hdfs")
    if answers_after is None:
        (said,) = told
        assert re.match(
            r"warning: whatever was written to hdfs://\S+/output/e/0 is lost: .*nobody answers", said
        )
    else:
        assert (told, len(orders)) == ([], 3)


def test_what_a_run_left_on_a_host_is_found_and_ended(tmp_path):
    """By what the watchdog goes by: its order."""
    order = tmp_path / "runs/steps-1/inputs/hdfs/order.json"
    order.parent.mkdir(parents=True)
    order.touch()

    def shell(command):
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60).stdout

    assert mounted_runs(shell(mounted_runs_command(f"{tmp_path}/runs"))) == ["steps-1"]
    shell(end_mounts_command(f"{tmp_path}/runs/steps-1"))
    assert not order.parent.exists()
    assert mounted_runs(shell(mounted_runs_command(f"{tmp_path}/runs"))) == []
