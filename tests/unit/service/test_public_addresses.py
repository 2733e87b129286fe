"""What users have a server connect to is on the public internet, however its address is written."""

import pytest

from trainmaster.service.public_addresses import address_of, is_public


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
