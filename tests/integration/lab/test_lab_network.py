"""Between hosts: what security groups let through, how late it is, and how much of it arrives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def pair(lab: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Two hosts in different zones: ids and ways in."""
    (one,) = lab.rent(Placement={"AvailabilityZone": "us-east-1a"})
    (other,) = lab.rent(Placement={"AvailabilityZone": "us-east-1b"})
    yield one, other, lab.ssh(one, stay=True), lab.ssh(other, stay=True)
    for ends in ((one, other), ("us-east-1a", "us-east-1b")):
        lab.call("delay", *ends, "none")
    lab.end(one, other)


def round_trip_ms(ssh: Any, address: str, count: int = 20) -> float:
    """The median, as the kernel's own clock of `ping` leaves the delay line's part out."""
    lines = ssh(f"sudo ping -U -i 0.02 -c {count} -W 2 {address}")
    times = sorted(float(text) for text in re.findall(r"time=([\d.]+)", lines))
    return times[len(times) // 2]


def test_delay_between_two_hosts_is_exact_and_can_be_changed(lab: Any, pair: Any) -> None:
    one, other, ssh, back = pair
    there, here = (lab.instance(name)["PrivateIpAddress"] for name in (other, one))
    assert round_trip_ms(ssh, there) < 2
    for delay_ms in (5, 25):
        lab.call("delay", one, other, delay_ms)
        assert 2 * delay_ms <= round_trip_ms(ssh, there) < 2 * delay_ms + 3
        assert 2 * delay_ms <= round_trip_ms(back, here) < 2 * delay_ms + 3
    assert ssh("true") == ""  # the way from outside is as it was
    lab.call("delay", "us-east-1a", "us-east-1b", 10)
    assert 50 <= round_trip_ms(ssh, there) < 53  # two hosts are narrower than two zones
    lab.call("delay", one, other, "none")
    assert 20 <= round_trip_ms(ssh, there) < 23
    lab.call("delay", "us-east-1a", "us-east-1b", "none")
    assert round_trip_ms(ssh, there) < 2


def test_packets_are_lost(lab: Any, pair: Any) -> None:
    one, other, ssh, _ = pair
    address = lab.instance(other)["PrivateIpAddress"]
    lab.call("delay", one, other, 0, "--loss", 0.5, "--one-way")
    text = ssh(f"sudo ping -q -i 0.01 -c 100 -W 0.5 {address} || true")
    lost = float(re.search(r"([\d.]+)% packet loss", text)[1])  # type: ignore[index]
    assert 25 < lost < 75
    lab.call("delay", one, other, "none")


def test_a_link_still_carries_its_rate_when_it_is_long(lab: Any, pair: Any) -> None:
    one, other, ssh, back = pair
    address = lab.instance(other)["PrivateIpAddress"]
    lab.call("delay", one, other, 5)
    back("nohup timeout 20 nc -l -p 22222 > ~/got 2> /dev/null < /dev/null &")
    seconds = float(
        ssh(
            f"for i in $(seq 50); do nc -z -w 1 {address} 22 && break; done; sleep 0.3; s=$(date +%s.%N);"
            f"head -c 12000000 /dev/zero | nc -N -w 10 {address} 22222; e=$(date +%s.%N);"
            'python3 -c "print($e - $s)"'
        )
    )
    assert int(back("stat -c %s got")) == 12_000_000
    assert 12 * 8 / seconds > 40  # Mbit/s, of 94
    lab.call("delay", one, other, "none")


def test_security_groups_are_enforced_and_can_be_changed(lab: Any, pair: Any) -> None:
    _, other, ssh, back = pair
    ec2 = lab.ec2
    address = lab.instance(other)["PrivateIpAddress"]
    back("nohup bash -c 'while :; do nc -l -p 8000 < /dev/null; done' > /dev/null 2>&1 &")
    open_port = f"nc -z -w 1 {address} 8000"
    assert ssh.run(f"sleep 0.3; {open_port}").returncode == 0  # members of one group

    group = ec2.create_security_group(GroupName="closed", Description="ssh only")["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    ec2.modify_instance_attribute(InstanceId=other, Groups=[group])
    assert ssh.run(open_port).returncode != 0
    assert back("echo still in") == "still in"

    own = lab.access["security_group_id"]
    more = {"IpProtocol": "tcp", "FromPort": 8000, "ToPort": 8080, "UserIdGroupPairs": [{"GroupId": own}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[more])
    assert ssh.run(open_port).returncode == 0
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[more])
    assert ssh.run(open_port).returncode != 0


def test_the_default_group_lets_nobody_in(lab: Any) -> None:
    answer = lab.ec2.run_instances(
        ImageId=lab.access["image_id"], InstanceType="m4.large", MinCount=1, MaxCount=1
    )
    name = answer["Instances"][0]["InstanceId"]
    lab.until_state(name, "running")
    import socket

    with pytest.raises(TimeoutError):
        socket.create_connection((lab.instance(name)["PublicIpAddress"], 22), 1)
    lab.end(name)
