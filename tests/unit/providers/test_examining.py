"""What a doctor says of places, of what they answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from trainmaster.providers.base import Provider
from trainmaster.providers.examining import Finding, driver_finding, examined
from trainmaster.providers.host_probe import probe_findings, probe_script, told_mbps
from trainmaster.providers.kubernetes.answers import network_findings, node_findings
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError
from trainmaster.transport.base import Result

PEERS = ("n1", "n2")


class PlugIn:
    """A place that says no more than it has to."""

    def __init__(self, error: TrainmasterError | None = None) -> None:
        self._error = error

    def check_settings(self) -> None:
        """They are right."""

    def check_up(self) -> None:
        """It answers, or does not."""
        if self._error:
            raise self._error


def test_a_plug_in_has_findings_without_a_word_of_its_own() -> None:
    for error in (
        None,
        UsageError("its token is over", "Log in again."),
        ProviderError("it is away", "Wait."),
    ):
        first, *rest = examined(cast("Provider", PlugIn(error)), {"torch": "12.4"})
        assert (first.what, first.ok, first.advice) == ("login", not error, error.hint if error else "")
        assert [each.what for each in rest] == ([] if error else ["driver"])


def said(met: list[str], driver: str = "", **builds: str) -> Result:
    told = {"met": met, "why": {"n2": "timed out"}, "builds": builds, "driver": driver}
    return Result(0, f"welcome\n@@trainmaster-probe {json.dumps(told)}\n", "")


@pytest.mark.parametrize(
    ("answer", "words", "is_ok"),
    [
        (said(["n1", "n2"]), "n1 reaches n2", True),
        (said(["n1"]), "n1 does not reach n2: timed out", False),
        (said(["n1", "n2"], "470.57.02"), "n1: driver 470.57.02 is too old for torch", False),
        (said(["n1", "n2"], "470.57.02", torch="11.8"), "470.57.02, which runs torch (CUDA 11.8)", True),
        (Result(127, "", "sh: python3: not found"), "does not run there: sh: python3: not found", False),
        (ProviderError("n1: it does not answer", "Is it on?"), "n1: it does not answer", False),
    ],
)  # fmt: skip
def test_what_a_host_says_of_others_and_of_its_driver(
    answer: Result | TrainmasterError, words: str, is_ok: bool
) -> None:
    found = probe_findings("n1", PEERS, answer, {"torch": "12.4"})
    assert words in found[-1].found
    assert all(each.ok for each in found) == is_ok
    assert all(each.ok or each.advice for each in found)


def test_a_host_without_room_where_runs_write_is_told(tmp_path: Path) -> None:
    def found(script: str) -> list[Finding]:
        command = ["/bin/sh", "-c", script.replace("python3", sys.executable)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return probe_findings("n1", ["n1"], Result(0, done.stdout, ""), {})

    assert found(probe_script({}, {})) == []
    script = probe_script({}, {}, str(tmp_path)).replace("shutil.disk_usage(sys.argv[5]).free", "5 << 20")
    (finding,) = found(script)
    assert (finding.what, finding.found, finding.ok) == (
        "disk",
        "n1: only 5.2 MB are free where runs write",
        False,
    )
    assert finding.advice == "Make room in /var/tmp there."


def test_hosts_meet_each_other_and_say_what_is_installed() -> None:
    addresses = dict(zip(PEERS, ("127.0.0.1", "127.0.0.2"), strict=True))
    script = probe_script(addresses, {"pytest": "", "no-such-package": ""}).replace("python3", sys.executable)
    every = '("", port)'  # each has its own here: else the first would hear itself, and leave the other alone
    assert every in script
    going = [
        subprocess.Popen(
            ["/bin/sh", "-c", script.replace(every, f'("{address}", port)')],
            stdout=subprocess.PIPE,
            text=True,
        )
        for address in addresses.values()
    ]
    for name, process in zip(PEERS, going, strict=True):
        out, _ = process.communicate(timeout=60)
        (finding,) = probe_findings(name, PEERS, Result(process.returncode, out, ""), {})
        assert finding.found == f"{name} reaches {PEERS[name == PEERS[0]]}"
        assert '"pytest"' in out
        assert "no-such-package" not in out


@pytest.mark.parametrize("senders", [(), ("n1",), PEERS])
def test_hosts_that_send_each_other_what_they_can_say_what_came(senders: tuple[str, ...]) -> None:
    addresses = {"n1": "127.0.0.1", "n2": "127.0.0.2"}
    # Here each address is of this machine: which host it is, a script of one has to be told.
    script = probe_script(addresses, {}, "", senders, 5.0)
    every = "if is_mine(peers[name])"
    assert every in script
    going = []
    for name, address in addresses.items():
        own = script.replace(every, f'if name == "{name}"').replace('("", port)', f'("{address}", port)')
        command = ["/bin/sh", "-c", own.replace("python3", sys.executable)]
        going.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outs = [process.communicate(timeout=60)[0] for process in going]
    rates = [told_mbps(Result(0, out, "")) for out in outs]
    assert all(rate > 10 for rate in rates) if senders == PEERS else rates == [0.0, 0.0], outs


@pytest.mark.parametrize("answer", [ProviderError("away", ""), said([]), Result(127, "", "no python3")])
def test_a_host_that_says_no_rate_has_none(answer: Result | TrainmasterError) -> None:
    assert told_mbps(answer) == 0.0


@pytest.mark.parametrize(
    ("spec", "is_ok"),
    [
        ({"podSelector": {}, "policyTypes": ["Ingress"]}, False),
        ({"podSelector": {}, "policyTypes": ["Egress"]}, True),
        ({"podSelector": {"matchLabels": {"app": "other"}}}, True),
        ({"podSelector": {}, "ingress": [{}]}, True),
        ({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}, True),
        ({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]}, False),
        ({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}, False),
    ],
)
def test_a_network_policy_may_keep_pods_apart(spec: dict[str, Any], is_ok: bool) -> None:
    (finding,) = network_findings([{"metadata": {"name": "p"}, "spec": spec}], "namespace n")
    assert finding.ok == is_ok


def test_drivers_that_feature_discovery_has_written_on_nodes() -> None:
    labels = {f"nvidia.com/cuda.driver.{part}": n for part, n in (("major", "525"), ("minor", "85"))}
    node = {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    nodes, driver = node_findings([node], {"torch": "13.0"})
    assert nodes.found == "1 of 1 take pods, with 8 nvidia.com/gpu in all"
    assert (driver.ok, "n: driver 525.85 is too old for torch" in driver.found) == (False, True)
    assert node_findings([node | {"spec": {"unschedulable": True}}], {})[0].ok is False
    assert node_findings(None, {"torch": "13.0"})[-1].ok


def test_a_version_of_cuda_that_is_not_known_is_not_judged() -> None:
    assert driver_finding("n", "340.1", {"torch": "", "jax": "99.1"}).ok
