"""The key `serve`: what is read, what is refused and where, and how the port gets into the command."""

from __future__ import annotations

import subprocess

import pytest

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.serve import Serve


def read(serve, more=""):
    return Recipe.from_text(f"name: r\nexperiments:\n  api:\n    serve: {serve}\n{more}")


def test_a_service_has_a_command_beside_it_or_in_it():
    inside = read("{command: 'python s.py {{port}}', health: /ok, replicas: 2}").experiments["api"]
    beside = read("{health: /ok, replicas: 2}", "    command: python s.py {{port}}\n").experiments["api"]
    assert inside == beside
    assert inside.serve.replicas.fewest == inside.serve.replicas.most == 2
    assert len(inside.tasks(0)) == 2
    assert inside.summary()["serve"]["health"] == "/ok"


def test_a_service_that_follows_an_alias_needs_room_for_one_more():
    serve = read("{command: x, model: d@production, replicas: {min: 0, max: 3}, scale: {in_flight: 8}}")
    assert serve.experiments["api"].serve.most_at_once == 4
    assert serve.experiments["api"].summary()["tasks"] == 3  # as `check` shows it
    assert serve.experiments["api"].serve.scale.down_after_s == 300
    sooner = read("{command: x, replicas: {min: 0, max: 3}, scale: {in_flight: 8, down_after: 30s}}")
    assert sooner.experiments["api"].serve.scale.down_after_s == 30
    for fixed in ("d@3", "run-1234/train", "run-1234/train/7"):
        assert not Serve(model=fixed).follows_alias
    for moving in ("d", "d@newest", "d@production"):
        assert Serve(model=moving).follows_alias


@pytest.mark.parametrize("command", ["echo {{port}}", "echo a:{{port}}:b >&1", 'x={{port}}; echo "$x"'])
def test_the_port_of_a_replica_is_known_where_it_starts(command):
    script = Recipe.from_dict({"name": "r", "experiments": {"a": {"serve": {"command": command}}}})
    text = script.experiments["a"].script({})
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], env={"TRAINMASTER_PORT": "4711"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() in ("4711", "a:4711:b")
    fixed = Recipe.from_dict(
        {"name": "r", "experiments": {"a": {"serve": {"command": command, "port": 8000}}}}
    )
    assert "8000" in fixed.experiments["a"].script({})


@pytest.mark.parametrize(
    ("serve", "more", "line", "words"),
    [
        ("{command: x, port: 80, replicas: 2}", "", 4, "one port of several replicas"),
        ("{command: x, port: 80, model: d@prod}", "", 4, "follow an alias"),
        ("{command: x, replicas: {min: 1, max: 2}}", "", 4, "bounds without `scale`"),
        ("{command: x, scale: {in_flight: 8}}", "", 4, "`scale` without bounds"),
        ("{command: x, replicas: {min: 3, max: 2}, scale: {in_flight: 8}}", "", 4, "more than max"),
        ("{command: x, replicas: 0}", "", 4, "at least 1"),
        ("{command: x, health: ok}", "", 4, "write a path"),
        ("{command: x, name: A_b}", "", 4, "small letters"),
        ("{command: x, model: a/b/c/d}", "", 4, "RUN/EXPERIMENT/TASK"),
        ("{command: x, ports: 8}", "", 4, "did you mean 'port'"),
        ("{command: x}", "    command: y\n", 4, "give it once"),
        ("{health: /}", "", 3, "no `command`"),
        ("{comand: x}", "", 4, "did you mean 'command'"),
        ("{command: x}", "    timeout: 3h\n", 5, "`timeout` of a service"),
        ("{command: x}", "    parameters: {a: [1, 2]}\n", 5, "`parameters` of a service"),
        ("{command: x}", "  b:\n    command: y\n    after: api\n", 7, "is a service, which does not end"),
        ("[1]", "", 4, "write a mapping"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(serve, more, line, words):
    with pytest.raises(RecipeError) as told:
        read(serve, more)
    assert any(words in mistake.message and mistake.line == line for mistake in told.value.mistakes), told


def test_the_port_is_a_word_of_services_only():
    with pytest.raises(RecipeError, match="key `serve`"):
        Recipe.from_text("name: r\nexperiments:\n  a: {command: 'x {{port}}'}\n")


def test_a_replica_may_be_asked_by_a_request():
    text = "{command: x, health: {path: /v1/chat, body: {max_tokens: 1}, status: 200, every: 10s}}"
    found = read(text).experiments["api"].serve.health
    assert (found.asks, found.body, found.status, found.every_s) == (
        "POST /v1/chat", '{"max_tokens": 1}', 200, 10.0
    )  # fmt: skip
    for whole in (read(text), read("{command: x, health: /ready}"), read("{command: x}")):
        assert Recipe.model_validate_json(whole.model_dump_json()) == whole  # how servers pass it on
    shown = read(text).experiments["api"].summary()["serve"]["health"]
    assert shown == {"path": "/v1/chat", "body": '{"max_tokens": 1}', "status": 200, "every_s": 10.0}


@pytest.mark.parametrize(
    ("health", "said"),
    [
        ("{path: /v1, method: GET, body: x}", "serve.health.body: a body of a GET; write `method: POST`"),
        ("{path: v1}", "serve.health.path: the text 'v1'; write a path such as /healthz"),
        ("v1", "serve.health: the text 'v1'; write a path such as /healthz"),
        ("{timeout: 30s}", "serve.hang: a check every 2 s that takes up to 30 s; write a `hang`"),
    ],
)
def test_requests_that_cannot_be_are_refused(health, said):
    with pytest.raises(RecipeError) as refused:
        read(f"{{command: x, health: {health}}}")
    assert said in str(refused.value)


def test_a_model_without_a_command_is_served_by_the_built_in_server():
    found = read("{model: digits@production}").experiments["api"]
    assert found.serve.health.path == "/v2/health/ready"
    assert "trainmaster.inference --port ${TRAINMASTER_PORT}" in found.script({})
    assert found.script({}).endswith("--name digits")
    own = read("{model: digits@production, health: /}").experiments["api"]
    assert own.serve.health.path == "/"
    assert read("{model: run-12ab/train/0}").experiments["api"].script({}).endswith("--name api")


@pytest.mark.parametrize("health", ["/healthz", "{path: /v1/chat, body: {max_tokens: 1}, every: 10s}"])
def test_a_server_has_back_what_its_reader_of_recipes_found(health):
    recipe = read(f"{{command: x, health: {health}}}")
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
