"""Fixtures. No conftest.py: two of that name collide when modules are searched for doctests."""

import secrets

import pytest


@pytest.fixture(params=["file", "memory"])
def store_url(request, tmp_path):
    """A fresh store of each kind that needs no server."""
    if request.param == "file":
        return f"file://{tmp_path / 'store'}"
    return f"memory://{secrets.token_hex(8)}"
