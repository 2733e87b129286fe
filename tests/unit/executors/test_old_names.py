"""A supervisor of 0.2.0 that goes on after an upgrade loads some modules with the first task for them."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("masking", ["SecretMask"]),
        ("enclosures", ["Enclosure"]),
        ("sandbox", ["command", "order"]),
        ("containers", ["container_name", "run_command", "records", "stop_command", "remove_command",
                        "system_calls", "NETWORK"]),
    ],
)  # fmt: skip
def test_it_finds_them(module, names):
    found = importlib.import_module(f"trainmaster.executors.{module}")
    assert getattr(sys.modules["trainmaster.executors"], module) is found
    for name in names:
        assert hasattr(found, name), name
    assert not hasattr(found, "no_such_thing")
