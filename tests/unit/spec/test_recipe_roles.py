"""What ``roles`` may be in a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError

HEAD = "experiments:\n  train:\n    command: 'true'\n"
GANG = "    distributed: {strategy: ps-async, workers: 2}\n"
T = "experiments.train.roles"


def read(tmp_path: Path, text: str) -> Recipe:
    (tmp_path / "r.yaml").write_text(text)
    return Recipe.read(tmp_path / "r.yaml")


def test_a_list_is_for_all_machines(tmp_path: Path) -> None:
    roles = read(tmp_path, HEAD + "    roles: [ansible/base, requirements.yml]\n").experiments["train"].roles
    assert roles is not None
    assert roles.groups == {"all": ("ansible/base", "requirements.yml")}
    assert roles.timeout_s == 1800


def test_each_role_of_members_may_have_its_own(tmp_path: Path) -> None:
    text = HEAD + GANG + "    roles: {ps: a, all: [b], worker: [c, a], timeout: 5m}\n"
    roles = read(tmp_path, text).experiments["train"].roles
    assert roles is not None
    assert list(roles.groups.items()) == [("all", ("b",)), ("ps", ("a",)), ("worker", ("c", "a"))]
    assert roles.entries == ("b", "a", "c")
    assert roles.timeout_s == 300


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ("[../other]", f"4:13: {T}.0: the text '../other' is not in the code"),
        ("[a, a]", f"4:16: {T}.1: the text 'a' a second time"),
        ("/etc", f"{T}: the text '/etc' is not in the code"),
        ("[]", "an empty list"),
        ("{timeout: 5m}", f"4:12: {T}: no role"),
        ("{ps: [a]}", f"4:13: {T}.ps: no member of this experiment is a ps"),
        ("{wroker: [a]}", f"4:13: {T}.wroker: unknown key 'wroker'; did you mean 'worker'?"),
        ("{all: [a], timeout: x}", f"{T}.timeout"),
        ("", f"{T}: nothing"),
        ("['{{x}}']", f"{T}.0"),
    ],
)
def test_mistakes_have_their_place(tmp_path: Path, roles: str, said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        read(tmp_path, HEAD + f"    roles: {roles}\n")
    assert said in str(refused.value)


def test_roles_have_variables_and_say_on_which_machines(tmp_path: Path) -> None:
    text = (
        HEAD
        + GANG
        + (
            "    secrets: [KEY]\n"
            "    roles:\n"
            "      - base\n"
            "      - {role: tf, on: ps, vars: {node_type: ps, num_gpu: 0, key: {secret: KEY}}}\n"
            "      - {role: tf, on: worker, vars: {node_type: worker, lists: [a, 1]}}\n"
        )
    )
    roles = read(tmp_path, text).experiments["train"].roles
    assert roles is not None
    assert roles.groups == {"all": ("base",), "ps": ("tf",), "worker": ("tf",)}
    assert roles.variables_of("ps", "tf") == {"node_type": "ps", "num_gpu": 0, "key": {"secret": "KEY"}}
    assert roles.variables_of("worker", "tf") == {"node_type": "worker", "lists": ["a", 1]}
    assert roles.secrets == ("KEY",)
    grouped = HEAD + GANG + "    roles: {worker: [{role: r.yml, vars: {a: 1}}]}\n"
    roles = read(tmp_path, grouped).experiments["train"].roles
    assert roles is not None
    assert roles.variables_of("worker", "r.yml: base") == {"a": 1}


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ("[{vars: {a: 1}}]", "no `role`"),
        ("[{role: a, var: {a: 1}}]", "unknown key 'var'; did you mean 'vars'?"),
        ("[{role: a, on: master}]", "write all or chief or worker or ps"),
        ("[{role: a, vars: [x]}]", "write {role: DIR, vars: {NAME: VALUE}}"),
        ("[{role: a, vars: {a-b: x}}]", "the name 'a-b'"),
        ("[{role: ../a}]", "is not in the code"),
        ("{all: [{role: a, on: ps}]}", "`on` is for a list of roles"),
        ("[{role: a, vars: {key: {secret: KEY}}}]", "KEY, which is not in `secrets`"),
    ],
)
def test_mistakes_in_variables_are_named(tmp_path: Path, roles: str, said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        read(tmp_path, HEAD + f"    roles: {roles}\n")
    assert said in str(refused.value)
