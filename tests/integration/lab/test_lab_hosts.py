"""Instances of the lab are machines: what a user of EC2 does with them, and what is seen from inside."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

TOKEN = (
    "curl() { python3 - \"$@\" <<'E'\n"
    "import sys, urllib.request as u, urllib.error\n"
    "r = u.Request('http://169.254.169.254/latest/' + sys.argv[2], method=sys.argv[1])\n"
    "for h in sys.argv[3:]: r.add_header(*h.split(': '))\n"
    "try: print(u.urlopen(r, timeout=5).read().decode())\n"
    "except urllib.error.HTTPError as e: print(e.code)\n"
    "E\n}\n"
)


def test_a_host_is_a_machine_of_its_own(lab: Any, shared_host: Any) -> None:
    name, ssh = shared_host
    instance = lab.instance(name)
    private = instance["PrivateIpAddress"]
    assert ssh("hostname") == "ip-" + private.replace(".", "-")
    assert ssh("hostname -I").split() == [private], "the public one is not on its card, as on EC2"
    assert ssh("sudo id -u") == "0"
    assert int(ssh("ps ax | wc -l")) < 15
    assert ssh("ip -br link | grep -c eth0") == "1"


def test_nothing_of_the_developer_is_there_but_the_runtime(lab: Any, shared_host: Any) -> None:
    _, ssh = shared_host
    root = Path(__file__).parents[3]
    for path in (root / "tests", root / "pyproject.toml", lab.home, lab.env["TRAINMASTER_CACHE"]):
        assert ssh.run(f"sudo ls {path}").returncode != 0, path
    assert ssh("python3 -c 'import sys; print(sys.prefix)'") == sys.prefix
    assert ssh("python3 -c 'import trainmaster, numpy; print(trainmaster.__file__)'").endswith(
        "trainmaster/__init__.py"
    )
    assert ssh.run(f"sudo touch {sys.prefix}/x").returncode != 0


def test_limits_are_those_of_the_type(lab: Any, shared_host: Any) -> None:
    _, ssh = shared_host  # m4.xlarge: 4 vCPUs at 0.25, 16 GiB at 0.125
    assert int(ssh("awk '/MemTotal/ {print $2}' /proc/meminfo")) == 2 * 2**20
    assert int(ssh("nproc")) == min(os.cpu_count() or 1, 1)
    busy = (
        "import time; t = time.process_time(); end = time.time() + 1\n"
        "while time.time() < end: pass\n"
        "print(time.process_time() - t)"
    )
    (small,) = lab.rent("t2.small")  # a quarter of a core, half a GiB
    little = lab.ssh(small)
    assert float(little(f"python3 -c '{busy}'")) < 0.4
    assert little("python3 -c 'x = bytes([1]) * (700 * 2**20)'; echo $?").endswith("137")
    lab.end(small)


def test_the_network_card_has_the_rate_of_the_type(shared_host: Any) -> None:
    _, ssh = shared_host  # 750 Mbit/s at 0.125 is 94 Mbit/s: 6 MB take half a second
    start = time.monotonic()
    assert len(ssh("head -c 6000000 /dev/zero | tr '\\0' x")) == 6_000_000
    assert time.monotonic() - start > 0.4, "it may be slower, but never quicker"


def test_hosts_reach_each_other_and_the_metadata(lab: Any, shared_host: Any) -> None:
    _, ssh = shared_host
    (other,) = lab.rent()
    there = lab.ssh(other)
    address = lab.instance(other)["PrivateIpAddress"]
    assert ssh(f"ping -c 1 -W 2 {address} > /dev/null && echo yes") == "yes"
    assert ssh(f"nc -w 2 {address} 22 < /dev/null").startswith("SSH-2.0")
    assert there(TOKEN + "curl GET meta-data/instance-id") == other
    lab.end(other)


def test_user_data_runs_at_boot_once(lab: Any) -> None:
    script = "#!/bin/bash\nid -u >> /root/boots\nhostname > /tmp/name\n"
    (name,) = lab.rent(UserData=script)
    ssh = lab.ssh(name)
    ssh("for i in $(seq 600); do [ -e /var/lib/cloud/instance/boot-finished ] && break; sleep 0.1; done")
    assert ssh("sudo cat /root/boots") == "0"
    lab.ec2.stop_instances(InstanceIds=[name])
    lab.until_state(name, "stopped")
    lab.ec2.start_instances(InstanceIds=[name])
    again = lab.ssh(name)
    assert again("sudo cat /root/boots") == "0"  # the disk is as it was, and the script has not run again
    lab.end(name)


def test_cloud_config_makes_users_and_files(lab: Any) -> None:
    key = Path(lab.access["private_key"] + ".pub").read_text().strip()
    config = (
        "#cloud-config\n"
        f"users: [default, {{name: ada, ssh_authorized_keys: ['{key}'], sudo: 'ALL=(ALL) NOPASSWD:ALL'}}]\n"
        "write_files: [{path: /etc/lab/x, content: 'a b', permissions: '0640'}]\n"
        "runcmd: [[touch, '/root/ran it'], 'echo $HOME > /root/home']\n"
    )
    (name,) = lab.rent(UserData=config)
    ssh = lab.ssh(name, user="ada")
    ssh("for i in $(seq 600); do [ -e /var/lib/cloud/instance/boot-finished ] && break; sleep 0.1; done")
    assert ssh("sudo stat -c %a /etc/lab/x; sudo cat /etc/lab/x").split("\n") == ["640", "a b"]
    assert ssh("sudo ls /root").split("\n") == ["home", "ran it"]
    lab.end(name)


def test_stop_start_and_reboot_keep_the_disk_and_change_the_public_address(lab: Any, host: Any) -> None:
    name, ssh = host
    before = lab.instance(name)
    ssh("echo kept > note")
    lab.ec2.stop_instances(InstanceIds=[name])
    lab.until_state(name, "stopped")
    assert "PublicIpAddress" not in lab.instance(name)
    lab.ec2.start_instances(InstanceIds=[name])
    ssh = lab.ssh(name)
    after = lab.instance(name)
    assert after["PrivateIpAddress"] == before["PrivateIpAddress"]
    assert after["PublicIpAddress"] != before["PublicIpAddress"]
    assert ssh("cat note") == "kept"
    ssh("sudo touch /run/this-boot")
    # As with cloud-init; a dead-man switch comes back so.
    there = "/var/lib/cloud/scripts/per-boot/mine"
    ssh(f"printf '#!/bin/sh\\necho again > /run/mine\\n' | sudo tee {there}; sudo chmod 755 {there}")
    lab.ec2.reboot_instances(InstanceIds=[name])
    deadline = time.monotonic() + 120
    while ssh.run("test ! -e /run/this-boot").returncode != 0:
        assert time.monotonic() < deadline
    assert ssh("cat note") == "kept"
    assert ssh("for i in $(seq 600); do [ -e /run/mine ] && break; sleep 0.1; done; cat /run/mine") == "again"


@pytest.mark.parametrize(("behaviour", "state"), [("stop", "stopped"), ("terminate", "terminated")])
def test_a_host_that_shuts_down_stops_or_is_gone(lab: Any, behaviour: str, state: str) -> None:
    (name,) = lab.rent(InstanceInitiatedShutdownBehavior=behaviour)
    ssh = lab.ssh(name)
    ssh("sudo shutdown +1 2>/dev/null; sudo shutdown -c; sleep 0.3; true")  # taken back: it lives
    ssh.run("sudo shutdown -h now")
    lab.until_state(name, state)
    reason = lab.instance(name)["StateReason"]["Code"]
    assert reason == "Client.InstanceInitiatedShutdown"
    lab.end(name)


def test_processes_are_asked_before_they_are_ended(lab: Any, host: Any, tmp_path: Path) -> None:
    name, ssh = host
    ssh(
        "nohup bash -c 'trap \"echo asked > ~/asked; exit\" TERM; touch ~/armed; while :; do sleep 0.1; done'"
        " > /dev/null 2>&1 & for i in $(seq 600); do [ -e armed ] && break; sleep 0.1; done"
    )
    lab.ec2.stop_instances(InstanceIds=[name])
    lab.until_state(name, "stopped")
    lab.ec2.start_instances(InstanceIds=[name])
    assert lab.ssh(name)("cat asked") == "asked"


def test_terminate_is_idempotent_and_leaves_nothing(lab: Any) -> None:
    names = lab.rent(count=2)
    for name in names:
        lab.until_state(name, "running")
    lab.end(*names)
    lab.end(*names)
    for name in names:
        assert not any(name in text for texts in lab.traces().values() for text in texts)
        assert not (lab.directory / "hosts" / name).exists()
    states = {host["id"]: host["state"] for host in lab.json("status")["hosts"]}
    assert [states[name] for name in names] == ["terminated", "terminated"]


def test_an_address_that_is_free_again_is_given_to_the_next(lab: Any) -> None:
    (first,) = lab.rent(Placement={"AvailabilityZone": "us-east-1c"})
    address = lab.instance(first)["PrivateIpAddress"]
    lab.ssh(first)
    lab.end(first)
    (second,) = lab.rent(Placement={"AvailabilityZone": "us-east-1c"})
    assert lab.instance(second)["PrivateIpAddress"] == address
    assert lab.ssh(second)(TOKEN + "curl GET meta-data/instance-id") == second
    lab.end(second)


def test_the_same_client_token_rents_once(lab: Any) -> None:
    token = uuid.uuid4().hex
    first = lab.rent(ClientToken=token)
    assert lab.rent(ClientToken=token) == first
    with pytest.raises(Exception, match="IdempotentParameterMismatch"):
        lab.rent("m4.large", ClientToken=token)
    lab.end(*first)
