"""Where Ansible's roles are refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.control.checks import ansible
from trainmaster.control.checks.preflight import check_directories, check_roles
from trainmaster.spec import Recipe
from trainmaster.spec.errors import MissingPartError, UsageError

TEXT = "provider: {provider}\nexperiments: {{train: {{command: 'true', roles: [ansible/base]}}}}\n"


def recipe(directory: Path, provider: str = "hosts") -> Recipe:
    return Recipe.from_text(TEXT.format(provider=provider), directory=directory)


def test_this_machine_is_not_made_ready(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"experiments\.train\.roles: .*provider local is this one"):
        check_roles(recipe(tmp_path, "local"))


def test_without_ansible_the_call_of_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible.shutil, "which", lambda _: None)
    monkeypatch.setattr(ansible.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MissingPartError, match="ansible-core, which is not installed") as refused:
        check_roles(recipe(tmp_path))
    assert refused.value.hint == "pip install 'trainmaster[roles]'"


def test_a_role_that_is_not_in_the_code_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no ansible/base in"):
        check_directories(recipe(tmp_path))
    (tmp_path / "ansible" / "base" / "tasks").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"experiments\.train: roles: ansible/base is no role"):
        check_directories(recipe(tmp_path))
    (tmp_path / "ansible" / "base" / "tasks" / "main.yml").write_text("- debug:\n")
    check_directories(recipe(tmp_path))


def test_a_variable_that_a_role_requires_is_asked_for(tmp_path: Path) -> None:
    role = tmp_path / "ansible" / "base"
    for part in ("tasks", "meta", "defaults"):
        (role / part).mkdir(parents=True)
    (role / "tasks" / "main.yml").write_text("- debug:\n")
    (role / "defaults" / "main.yml").write_text("mirror: http://x\n")
    options = "{version: {required: true}, mirror: {required: true}, users: {required: false}}"
    (role / "meta" / "argument_specs.yml").write_text(f"argument_specs: {{main: {{options: {options}}}}}\n")
    said = r"experiments\.train: roles: ansible/base needs version; .*vars: {version: \.\.\.}"
    with pytest.raises(UsageError, match=said):
        check_directories(recipe(tmp_path))
    given = TEXT.replace("[ansible/base]", "[{{role: ansible/base, vars: {{version: 3}}}}]")
    check_directories(Recipe.from_text(given.format(provider="hosts"), directory=tmp_path))
