"""`run --on-cluster` of what no machine can drive is refused before anything is planned or asked."""

import pytest

from command_line import invoke
from trainmaster.cli import renting
from trainmaster.spec.errors import UsageError


def test_nobody_is_asked_to_send_keys_for_a_run_that_stays_here(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(renting, "agree_to_send", lambda *_, **__: pytest.fail("asked"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("experiments: {train: {command: 'true'}}")
    with pytest.raises(UsageError, match="--on-cluster: provider: local rents no machine") as refused:
        invoke("--local", "run", recipe, "--on-cluster")
    assert "Nothing was started" in refused.value.hint
