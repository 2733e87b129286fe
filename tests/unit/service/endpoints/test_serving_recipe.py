"""What is served without a command is known before anything starts."""

from __future__ import annotations

import pytest

from trainmaster.service.endpoints.serving_recipe import must_be_servable, serving_recipe
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import RecipeError, UsageError


@pytest.mark.parametrize("name", ["serve.py", "any.onnx", "any.skops", "saved_model.pb"])
def test_what_has_a_known_format_is_served(name):
    must_be_servable(["notes.txt", name])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["weights.json"], "the model has weights.json: no format that is known here"),
        (["deep/model.onnx"], "the model has deep: no format"),
        (["a.onnx", "b.onnx"], r"the model has a\.onnx, b\.onnx\. Call the one that is to be served model"),
        (["net.pt"], r"net\.pt is, or may hold, a pickle"),
        (["net.keras"], "SavedModel"),
    ],
)
def test_anything_else_is_refused_before_it_starts(names, said):
    with pytest.raises(UsageError, match=said) as refused:
        must_be_servable(names)
    assert "serve.py beside the code" in refused.value.hint


def test_a_script_beside_the_code_serves_any_model(tmp_path):
    with pytest.raises(UsageError):
        must_be_servable(["net.pt"], tmp_path)
    (tmp_path / "serve.py").touch()
    must_be_servable(["net.pt"], tmp_path)


def test_a_health_check_is_what_recipes_take(tmp_path):
    file = tmp_path / "recipe.yaml"
    asked = "{path: /generate, body: {inputs: hi}, timeout: 30s, every: 10s}"
    file.write_text(serving_recipe("digits@3", command="serve {{port}}", health=asked))
    serve = read_recipe(file).experiments["serve"].serve
    assert (serve.health.asks, serve.health.body) == ("POST /generate", '{"inputs": "hi"}')
    assert (serve.health.timeout_s, serve.hang_s) == (30.0, 80.0)  # it takes longer than replicas may hang
    file.write_text(serving_recipe("digits@3", command="serve {{port}}", health="/ready"))
    assert read_recipe(file).experiments["serve"].serve.hang_s == 30.0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ready", "--health:1:1: path: the text 'ready'; write a path such as /healthz"),
        ("{pth: /ready}", "--health:1:2: pth: unknown key 'pth'; did you mean 'path'?"),
        ("{path: /ready", "--health:1:"),
        ("[/ready]", "--health:1:1: a list"),
    ],
)
def test_a_wrong_health_check_is_said_where_it_stands(asked, said):
    with pytest.raises(RecipeError) as refused:
        serving_recipe("digits@3", command="serve {{port}}", health=asked)
    assert str(refused.value).startswith(said)
