"""What is served without a command is known before anything starts."""

from __future__ import annotations

import pytest

from trainmaster.service.endpoints.serving_recipe import must_be_servable
from trainmaster.spec.errors import UsageError


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
