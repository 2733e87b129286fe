"""Where a host is, by its name or address: on this machine, on the public internet, however it is written."""

import pytest

from trainmaster.spec.addresses import address_of, is_link_local, is_loopback, is_public


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost", "localhost.", "localhost:5000",
     "127.0.0.1", "127.0.0.1:80", "127.255.0.9", "::1", "[::1]", "[::1]:5000", "0:0:0:0:0:0:0:1",
     "::ffff:127.0.0.1", "[::ffff:127.0.0.1]:80"],
)  # fmt: skip
def test_hosts_that_are_this_machine(host):
    assert is_loopback(host)
    assert not is_link_local(host)


@pytest.mark.parametrize(
    "host",
    ["", ".", "127.evil.org", "127.0.0.1.evil.org", "localhost.evil.org", "mylocalhost", "x.localhost",
     "a.x.localhost:80", "localhost:evil.org", "me@localhost", "127.0.0.1@evil.org", "128.0.0.1", "10.0.0.1",
     "0.0.0.0", "::", "[::2]:80", "::1:5000", "169.254.169.254", "fe80::1", "s3.example.org", "local host",
     "127.0.0.256", "[localhost]"],
)  # fmt: skip
def test_hosts_that_may_be_another_machine(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["169.254.1.2", "169.254.169.254:80", "[fe80::1]:80", "fe80::1"])
def test_hosts_on_the_own_wire(host):
    assert is_link_local(host)


@pytest.mark.parametrize("host", ["", "169.254.evil.org", "localhost", "8.8.8.8", "[fec0::1]:80"])
def test_hosts_that_are_not_on_the_own_wire(host):
    assert not is_link_local(host)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "0.0.0.0", "100.64.0.1", "224.0.0.1", "192.88.99.1",
     "169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254",
     "::1", "fd00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "::ffff:10.0.0.1",
     "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:7f00:1::1", "2001:0:1::1",
     "::10.0.0.1", "::ffff:0:127.0.0.1"],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    assert not is_public(address_of(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address):
    assert is_public(address_of(address))
