"""`run --on-cluster` of what no machine can drive is refused before anything is planned or asked.

So is `resume` elsewhere.
"""

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


@pytest.mark.parametrize("words", [("--provider", "aws"), ("--set", "experiments.train.retries=2")])
def test_a_run_is_not_resumed_in_another_place_or_with_other_keys(tmp_path, monkeypatch, words):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match="a run stays where it was started") as refused:
        invoke("--local", "resume", "latest", *words)
    assert "provider: [hosts, aws]" in refused.value.hint


def test_of_several_places_one_must_be_named(tmp_path, monkeypatch):
    """What is sent, and whether that is asked first, goes by the place."""
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("provider: [lab, aws]\nexperiments: {train: {command: 'true'}}")
    with pytest.raises(UsageError, match="lab, aws: there may be one only: name it with --provider"):
        invoke("--local", "run", recipe, "--on-cluster", "--yes")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{dir: ../images}", "dir: ../images is on this machine only, as it is no part of the code: push it"),
        ("{dir: /usr}", "dir: /usr is on this machine only"),
        ("{url: 'file:///etc/hosts'}", "url: file:///etc/hosts is on this machine only"),
        ("{volume: /data/pets}", "volume: /data/pets is on this machine only"),
    ],
)
def test_data_that_only_this_machine_has_are_refused_before_anything_is_rented(
    tmp_path, monkeypatch, source, why
):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINMASTER_STORE", "s3://bucket/store")
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: pytest.fail("planned"))
    recipe = tmp_path / "recipe.yaml"
    text = f"provider: aws\nexperiments: {{b: {{command: 'true', data: {{d: {source}}}}}}}"
    recipe.write_text(text)
    with pytest.raises(UsageError) as refused:
        invoke("--local", "run", recipe, "--on-cluster", "--send-keys")
    assert f"--on-cluster: experiments.b.data.d.{why}" in str(refused.value)
    assert "Nothing was started" in refused.value.hint


def test_your_own_keys_are_not_sent_by_yes_alone(tmp_path, monkeypatch):
    for name in ("TRAINMASTER_DRIVER_ROLE", "TRAINMASTER_DRIVER_PROFILE", "TRAINMASTER_SEND_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINMASTER_STORE", "s3://bucket/store")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("provider: aws\nexperiments: {train: {command: 'true'}}")
    words = ("--local", "run", recipe, "--on-cluster", "--yes")
    with pytest.raises(UsageError, match="as wide as they are") as refused:
        invoke(*words)
    assert "--send-keys" in refused.value.hint

    def plans(**_):
        raise UsageError("it goes on")

    monkeypatch.setattr("trainmaster.api.EmbeddedClient", plans)
    with pytest.raises(UsageError, match="it goes on"):
        invoke(*words, "--send-keys")
