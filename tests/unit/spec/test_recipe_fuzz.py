"""Any bytes are a recipe, or are refused with a place in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster.spec.data_source import DataSource
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.experiment import Experiment
from trainmaster.spec.node import MAX_RECIPE_BYTES
from trainmaster.spec.reading import Key, keys_of
from trainmaster.spec.recipe import Recipe, read_recipe

GOOD = b"""\
name: digits
seed: 3
secrets: [TOKEN]
data: {d: {url: "https://h/x.tar", sha256: "%s"}}
budget: {total: $20, deadline: 3h}
experiments:
  train:
    parameters: {lr: {min: 1e-5, max: 1e-1, scale: log}, size: [1, 2, 3]}
    samples: 4
    command: "python t.py {{lr}}"
    hardware: {gpus: 1, memory: 4GB}
    checkpoint: {every: 60s}
    retries: 2
  use: {after: train, data: {m: {from: train, best: loss}}, command: [a, b]}
""" % (b"0" * 64)


def _names(noun: type) -> list[str]:
    return [key.name for _, key in keys_of(noun) if isinstance(key, Key)]


KEYS = sorted({*_names(Recipe), *_names(Experiment), *_names(DataSource)})
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats()
    | st.sampled_from(["", "$20", "3h", "16GB", "{{x}}", "${X}", "s3://b/x", "t.py", "1e999", "-1", "*"])
    | st.text(max_size=8)
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "x", "min", "max", "total"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def yaml(value: object) -> str:
    """As flow YAML; what JSON cannot say is said as YAML does."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml(key)}: {yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml, value)) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return {None: "null", True: "true", False: "false"}.get(value, str(value))  # type: ignore[call-overload]


def read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_bytes(data)
    recipe, refusal = None, None
    try:
        recipe = read_recipe(file)
    except RecipeError as error:
        refusal = error
    if recipe is None:
        assert refusal is not None
        assert refusal.mistakes
        assert all(each.line >= 1 and each.column >= 1 and each.message for each in refusal.mistakes)
        return
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    for experiment in recipe.experiments.values():
        assert len(experiment.tasks(recipe.seed)) >= 0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
@example(b"\xff\xfe")
@example(b"experiments: &a {x: *a}")
@example(b"? " * 500)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    read_or_refused(tmp_path_factory, data)


@given(
    st.dictionaries(st.sampled_from(KEYS), values, max_size=4), st.dictionaries(st.sampled_from(KEYS), values)
)
def test_any_values_of_known_keys(
    tmp_path_factory: pytest.TempPathFactory, top: dict[str, object], inner: dict[str, object]
) -> None:
    document = {**top, "experiments": {"main": {"command": "true", **inner}}}
    read_or_refused(tmp_path_factory, yaml(document).encode("utf-8", "surrogatepass"))


@given(
    st.integers(0, len(GOOD)),
    st.integers(0, 12),
    st.binary(max_size=6) | st.sampled_from([b"*a", b"&a ", b"- ", b"{", b"!!python/name:os.system "]),
)
def test_a_good_recipe_with_a_piece_changed(
    tmp_path_factory: pytest.TempPathFactory, where: int, count: int, piece: bytes
) -> None:
    read_or_refused(tmp_path_factory, GOOD[:where] + piece + GOOD[where + count :])


BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]\n" for n in range(12))
LARGE = {
    "aliases": BOMB.encode(),
    "open brackets": b"[" * 900_000,
    "open braces": b"{a: " * 250_000,
    "dashes": b"- " * 500_000,
    "question marks": b"? " * 500_000,
    "anchors": b"&a " * 300_000,
    "one long line": b"x" * 1_000_000,
    "many keys": b"".join(b"k%d: 1\n" % n for n in range(5_000)),
    "a key many times": b"k: 1\n" * 5_000,
    "digits": b"seed: " + b"9" * 1_000_000,
    "quotes": b'"' + b"\\n" * 400_000,
    "too large": b"#" * (MAX_RECIPE_BYTES + 1),
}


@pytest.mark.parametrize("kind", list(LARGE))
def test_what_is_made_to_take_long_is_refused(tmp_path: Path, kind: str) -> None:
    """The limits of depth, aliases and size are met before memory or the stack are used up."""
    file = tmp_path / "r.yaml"
    file.write_bytes(LARGE[kind])
    with pytest.raises(UsageError):
        read_recipe(file)
