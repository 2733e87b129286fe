import io
import sys

import pytest

from trainmaster.api.remote import contexts
from trainmaster.cli.contexts import login
from trainmaster.spec.errors import UsageError


def test_a_token_that_is_empty_is_not_sent(monkeypatch):
    monkeypatch.setattr(contexts, "certificate", lambda _: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(UsageError, match="no token came on standard input"):
        login("http://127.0.0.1:1", token="-")
