"""What a role consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.control.checks.role_files import read_role, require_role, required_names
from trainmaster.spec.errors import UsageError


def role(top: Path, name: str, tasks: str) -> Path:
    directory = top / name
    (directory / "tasks").mkdir(parents=True, exist_ok=True)
    (directory / "tasks" / "main.yml").write_text(tasks, encoding="utf-8")
    return directory


def test_the_digest_is_of_contents_and_names(tmp_path: Path) -> None:
    base = role(tmp_path, "base", "- debug:\n")
    main = base / "tasks" / "main.yml"
    first = read_role(base, []).digest
    main.touch()
    (base / ".galaxy_install_info").write_text("install_date: today\n")
    assert read_role(base, []).digest == first
    main.write_text("- debug: {}\n")
    second = read_role(base, []).digest
    main.rename(main.with_name("other.yml"))
    assert len({first, second, read_role(base, []).digest}) == 3


def test_roles_that_it_names_belong_to_it(tmp_path: Path) -> None:
    base = role(tmp_path, "base", "- include_role: {name: java}\n")
    role(tmp_path, "java", "- debug:\n")
    role(tmp_path, "jav", "- debug:\n")
    first = read_role(base, [tmp_path]).digest
    role(tmp_path, "jav", "- debug: {}\n")
    assert read_role(base, [tmp_path]).digest == first
    role(tmp_path, "java", "- debug: {}\n")
    assert read_role(base, [tmp_path]).digest != first


@pytest.mark.parametrize(
    ("tasks", "uses"),
    [
        ("- copy: {content: \"{{ groups['ps'] | join }}\", dest: /x}\n", True),
        ('- copy: {content: "{{ hostvars[x].private }}", dest: /x}\n', True),
        ("- user:\n    name: me\n    groups: docker\n", False),
    ],
)
def test_a_role_that_looks_at_peers_changes_with_them(tmp_path: Path, tasks: str, uses: bool) -> None:
    found = read_role(role(tmp_path, "base", tasks), [])
    assert (found.digest_with(["a"], {}) != found.digest_with(["a", "b"], {})) is uses


def test_only_variables_that_it_names_count(tmp_path: Path) -> None:
    found = read_role(role(tmp_path, "base", "- shell: pip install tf==$VERSION\n"), [])
    assert found.digest_with([], {"VERSION": "1"}) != found.digest_with([], {"VERSION": "2"})
    assert found.digest_with([], {"SIONS": "1"}) == found.digest_with([], {"SIONS": "2"})


def test_a_directory_without_tasks_is_no_role(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    with pytest.raises(UsageError, match=r"no tasks/main\.yml"):
        require_role(tmp_path, "roles/x")
    with pytest.raises(UsageError, match="there is no directory"):
        require_role(tmp_path / "gone", "roles/x")


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    base = role(tmp_path, "bäse", "- debug:\n  - x: [1\n- y: 2\n")
    with pytest.raises(UsageError, match=r"roles/bäse/tasks/main\.yml:\d: this is no YAML"):
        require_role(base, "roles/bäse")
    role(tmp_path, "bäse", "- debug: {msg: !unsafe '{{ x }}', k: !vault |\n    x}\n")
    (base / "vars").mkdir()
    (base / "vars" / "main.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3: [\n")
    with pytest.raises(UsageError, match="this is no YAML"):  # a bracket too many
        require_role(base, "roles/bäse")
    role(tmp_path, "bäse", "- debug: {msg: !unsafe '{{ x }}'}\n")
    assert require_role(base, "roles/bäse") == base


def test_names_in_requirements() -> None:
    document = {
        "roles": [
            "geerlingguy.java",
            {"src": "https://host/ansible-role-tf.git", "version": "1"},
            {"src": "./x.tar.gz"},
            {"name": "hadoop", "src": "https://host/y.git"},
        ],
        "collections": ["community.general"],
    }
    names = ["geerlingguy.java", "ansible-role-tf", "x", "hadoop"]
    assert required_names(document, "r.yml") == (names, True)
    assert required_names(["a"], "r.yml") == (["a"], False)


@pytest.mark.parametrize("document", ["text", [3], [{"name": "../x"}], [{"src": "{{ x }}"}], {"roles": 3}])
def test_what_names_no_roles_is_refused(document: object) -> None:
    with pytest.raises(UsageError, match=r"roles: r\.yml"):
        required_names(document, "r.yml")
