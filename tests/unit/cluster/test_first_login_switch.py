"""Machines whose provider gives them no dead-man switch at boot get it at the first login, once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.cluster.node_provisioner import NodeProvisioner
from trainmaster.providers.base import Node, NodeState
from trainmaster.providers.dead_man_switch import SELF_DELETION_FAILS
from trainmaster.spec.errors import ProviderError
from trainmaster.transport.base import Result


class Login:
    """A connection to a machine whose switch runs, or not; the login may use sudo, or not."""

    def __init__(self, *, runs: bool = False, may: bool = True) -> None:
        self.runs, self.may = runs, may
        self.scripts: list[bytes] = []

    def run(self, command: str, *, data: bytes = b"", timeout_s: float | None = None) -> Result:
        if not command.startswith("sudo"):
            return Result(0 if self.runs else 1, "", "")
        self.scripts.append(data)
        self.runs = self.may
        return Result(0 if self.may else 1, "", "" if self.may else "sudo: a password is required")


def provisioner(*, at_boot: bool) -> NodeProvisioner:
    home = SimpleNamespace(identity=lambda: "home", root=Path("none"))
    return NodeProvisioner(
        cast("Any", home), "run", cast("Any", None), Path("none"), 900.0, switch_at_boot=at_boot
    )


def node(*, is_rented: bool = True) -> Node:
    return Node("m-1", "c", "worker", NodeState.READY, user="cloudadm", is_rented=is_rented)


def test_it_is_started_once() -> None:
    login = Login()
    for _ in range(2):
        provisioner(at_boot=False)._bring_switch(cast("Any", login), node())
    (script,) = login.scripts
    assert script.startswith(b"#!/bin/sh")
    assert b"chown cloudadm" in script


@pytest.mark.parametrize(("at_boot", "is_rented"), [(True, True), (False, False)])
def test_nobody_else_gets_one(at_boot: bool, is_rented: bool) -> None:
    login = Login()
    provisioner(at_boot=at_boot)._bring_switch(cast("Any", login), node(is_rented=is_rented))
    assert login.scripts == []


def test_without_sudo_it_is_no_node() -> None:
    with pytest.raises(ProviderError, match="cannot be started: sudo: a password is required") as caught:
        provisioner(at_boot=False)._bring_switch(cast("Any", Login(may=False)), node())
    assert "cloudadm" in caught.value.hint


class Root:
    """A connection to a machine on whose disk root may write; it has what deletes it, or gets it."""

    def __init__(self, *, may: bool = True) -> None:
        self.may, self.brought = may, list[bytes]()

    def run(self, command: str, *, data: bytes = b"", timeout_s: float | None = None) -> Result:
        if "grep" in command:
            return Result(0 if any(b"m-1" in each for each in self.brought) else 1, "", "")
        if "python9" in data.decode():
            return Result(SELF_DELETION_FAILS, "", "env: 'python9': No such file or directory")
        if self.may:
            self.brought.append(data)
        return Result(0 if self.may else 1, "", "" if self.may else "sudo: a password is required")


def test_what_deletes_a_machine_is_brought_once() -> None:
    nodes = provisioner(at_boot=True)
    nodes._self_deletion = lambda of: f"delete {of.id}"
    login = Root()
    for _ in range(2):
        nodes._bring_self_deletion(cast("Any", login), node())
    nodes._bring_self_deletion(cast("Any", Root()), node(is_rented=False))
    assert login.brought == [b"delete m-1"]
    nodes._self_deletion = lambda _: ""
    nodes._bring_self_deletion(cast("Any", other := Root()), node())
    assert other.brought == []


def test_what_would_run_what_deletes_a_machine_is_named() -> None:
    nodes = provisioner(at_boot=True)
    nodes._self_deletion = lambda of: f"#!/usr/bin/env python9\n{of.id}"
    with pytest.raises(ProviderError, match=r"m-1: .*does not run there: env: 'python9': No such") as caught:
        nodes._bring_self_deletion(cast("Any", Root()), node())
    assert "/usr/bin/env python9" in caught.value.hint


def test_what_deletes_a_machine_needs_sudo() -> None:
    nodes = provisioner(at_boot=True)
    nodes._self_deletion = lambda of: of.id
    with pytest.raises(ProviderError, match="cannot be brought: sudo: a password is required"):
        nodes._bring_self_deletion(cast("Any", Root(may=False)), node())
