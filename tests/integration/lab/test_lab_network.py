"""Between hosts: what security groups let through, how late it is, and how much of it arrives."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.executors.supervisor import traffic


@pytest.fixture(scope="module")
def pair(lab: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Two hosts in different zones: ids and ways in."""
    (one,) = lab.rent(Placement={"AvailabilityZone": "us-east-1a"})
    (other,) = lab.rent(Placement={"AvailabilityZone": "us-east-1b"})
    yield one, other, lab.ssh(one, stay=True), lab.ssh(other, stay=True)
    lab.end(one, other)


@pytest.fixture(autouse=True)
def plain(lab: Any, pair: Any) -> Iterator[None]:
    """No delays and the usual security group, before and after: what a test that failed has left, too."""
    one, other, _, _ = pair

    def reset() -> None:
        for ends in ((one, other), ("us-east-1a", "us-east-1b")):
            lab.do("delay", one=ends[0], other=ends[1], delay_ms=None)
        lab.ec2.modify_instance_attribute(InstanceId=other, Groups=[lab.access["security_group_id"]])

    reset()
    yield
    reset()


def round_trip_ms(ssh: Any, address: str, count: int = 20) -> float:
    """The median, as the kernel's own clock of `ping` leaves the delay line's part out."""
    lines = ssh(f"sudo ping -U -i 0.02 -c {count} -W 2 {address}")
    times = sorted(float(text) for text in re.findall(r"time=([\d.]+)", lines))
    return times[len(times) // 2]


def takes_ms(ssh: Any, address: str, least: float, most: float) -> None:
    """The round trip is never shorter, and as exact as this at least once: others use this machine, too."""
    seen = []
    for _ in range(10):
        seen.append(round_trip_ms(ssh, address))
        assert seen[-1] >= least
        if seen[-1] < most:
            return
        time.sleep(1)
    raise AssertionError(seen)


def in_time(ssh: Any, script: str) -> None:
    """It succeeds, if not at the first try."""
    deadline = time.monotonic() + 60
    while (done := ssh.run(script)).returncode != 0:
        assert time.monotonic() < deadline, (script, done)
        time.sleep(0.2)


def test_delay_between_two_hosts_is_exact_and_can_be_changed(lab: Any, pair: Any) -> None:
    one, other, ssh, back = pair
    there, here = (lab.instance(name)["PrivateIpAddress"] for name in (other, one))
    takes_ms(ssh, there, 0, 2)
    for delay_ms in (5, 25):
        lab.call("delay", one, other, delay_ms)
        takes_ms(ssh, there, 2 * delay_ms, 2 * delay_ms + 3)
        takes_ms(back, here, 2 * delay_ms, 2 * delay_ms + 3)
    assert ssh("true") == ""  # the way from outside is as it was
    lab.call("delay", "us-east-1a", "us-east-1b", 10)
    takes_ms(ssh, there, 50, 53)  # two hosts are narrower than two zones
    lab.call("delay", one, other, "none")
    takes_ms(ssh, there, 20, 23)
    lab.call("delay", "us-east-1a", "us-east-1b", "none")
    takes_ms(ssh, there, 0, 2)


def test_the_kernel_times_the_connections_of_a_gang(lab: Any, pair: Any) -> None:
    """As the supervisor asks it for what is measured of a gang: `tcpi_min_rtt` over netlink."""
    one, other, ssh, back = pair
    address, port = lab.instance(other)["PrivateIpAddress"], random.randint(20_000, 30_000)
    source = Path(traffic.__file__).read_text()
    asks = f"{source}\nprint(max(trip_us for *_, trip_us, _ in SocketReader().dump()))"
    lab.call("delay", one, other, 20)
    back(f"nohup timeout 60 nc -l -p {port} > /dev/null 2>&1 < /dev/null &")
    in_time(back, f"ss -Hltn 'sport = {port}' | grep -q .")
    trip_us = ssh(
        f"sleep 30 | nc {address} {port} & until ss -Htn state established 'dport = {port}' | grep -q .; "
        f"do sleep 0.1; done; python3 - <<'PYTHON'\n{asks}\nPYTHON\nkill %1"
    )
    assert 40_000 <= int(trip_us) < 60_000


def test_the_gateway_keeps_its_address_whoever_comes_and_goes(lab: Any, pair: Any) -> None:
    """Else the hosts would ask for their metadata in vain for some seconds after a neighbour has gone."""
    namespace = lab.directory / "net" / "region"

    def address() -> str:
        command = ["nsenter", f"--net={namespace}", "ip", "-json", "link", "show", "br0"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return str(json.loads(done.stdout)[0]["address"])

    before = address()
    names = lab.rent(count=4)  # the bridge would have the lowest address of these
    for name in names:
        lab.until_state(name, "running")
    assert address() == before
    lab.end(*names)
    assert address() == before


def test_packets_are_lost(lab: Any, pair: Any) -> None:
    one, other, ssh, _ = pair
    address = lab.instance(other)["PrivateIpAddress"]
    lab.call("delay", one, other, 0, "--loss", 0.5, "--one-way")
    text = ssh(f"sudo ping -q -i 0.01 -c 100 -W 0.5 {address} || true")
    lost = float(re.search(r"([\d.]+)% packet loss", text)[1])  # type: ignore[index]
    assert 25 < lost < 75


def test_a_link_still_carries_its_rate_when_it_is_long(lab: Any, pair: Any) -> None:
    one, other, ssh, back = pair
    address = lab.instance(other)["PrivateIpAddress"]
    lab.call("delay", one, other, 5)
    rates = []
    for _ in range(5):
        port = random.randint(20_000, 30_000)
        back(f"nohup timeout 60 nc -l -p {port} > ~/got 2> /dev/null < /dev/null &")
        in_time(back, f"ss -Hltn 'sport = {port}' | grep -q .")
        seconds = float(
            ssh(
                f"s=$(date +%s.%N); head -c 12000000 /dev/zero | nc -N -w 30 {address} {port}; "
                'e=$(date +%s.%N); python3 -c "print($e - $s)"'
            )
        )
        in_time(back, "[ $(stat -c %s got) = 12000000 ]")
        rates.append(12 * 8 / seconds)  # Mbit/s, of 94
        if rates[-1] > 40:
            return
    raise AssertionError(rates)


def test_security_groups_are_enforced_and_can_be_changed(lab: Any, pair: Any) -> None:
    _, other, ssh, back = pair
    ec2 = lab.ec2
    address, port = lab.instance(other)["PrivateIpAddress"], random.randint(8000, 8080)
    back(f"nohup bash -c 'while sleep 0.1; do nc -l -p {port} < /dev/null; done' > /dev/null 2>&1 &")
    open_port = f"nc -z -w 2 {address} {port}"
    in_time(ssh, open_port)  # members of one group

    group = ec2.create_security_group(GroupName=f"closed-{uuid.uuid4().hex}", Description="ssh only")[
        "GroupId"
    ]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    ec2.modify_instance_attribute(InstanceId=other, Groups=[group])
    assert ssh.run(open_port).returncode != 0
    assert back("echo still in") == "still in"

    own = lab.access["security_group_id"]
    more = {"IpProtocol": "tcp", "FromPort": 8000, "ToPort": 8080, "UserIdGroupPairs": [{"GroupId": own}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[more])
    in_time(ssh, open_port)
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[more])
    assert ssh.run(open_port).returncode != 0


def test_the_default_group_lets_nobody_in(lab: Any) -> None:
    answer = lab.ec2.run_instances(
        ImageId=lab.access["image_id"], InstanceType="m4.large", MinCount=1, MaxCount=1
    )
    name = answer["Instances"][0]["InstanceId"]
    lab.until_state(name, "running")

    with pytest.raises(TimeoutError):
        socket.create_connection((lab.instance(name)["PublicIpAddress"], 22), 1)
    lab.end(name)
