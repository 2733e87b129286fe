"""`quote --no-measure` rents nothing, and does not ask whether to."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import invoke
from trainmaster.spec.errors import MeasurementNeeded


def test_what_must_be_measured_first_is_only_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MeasurementNeeded("no worker's traffic is known", "")

    client = SimpleNamespace(quote_recipe=refuse)
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: client)
    monkeypatch.setattr("trainmaster.cli.quote._measured", lambda *_, **__: pytest.fail("asked"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("provider: aws\nexperiments: {train: {command: 'true'}}")
    with pytest.raises(MeasurementNeeded):
        invoke("--local", "quote", recipe, "--no-measure")
