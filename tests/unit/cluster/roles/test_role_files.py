"""What a role consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.cluster.roles.role_files import digest_of_tree, require_role, required_names
from trainmaster.spec.errors import UsageError


def test_the_digest_is_of_contents_and_names(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    main = tmp_path / "tasks" / "main.yml"
    main.write_text("- debug:\n")
    first = digest_of_tree(tmp_path)
    main.touch()
    assert digest_of_tree(tmp_path) == first
    main.write_text("- debug: {}\n")
    second = digest_of_tree(tmp_path)
    main.rename(main.with_name("other.yml"))
    assert len({first, second, digest_of_tree(tmp_path)}) == 3


def test_a_directory_without_tasks_is_no_role(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tasks/main\.yml"):
        require_role(tmp_path, "roles/x")
    with pytest.raises(UsageError, match="there is no directory"):
        require_role(tmp_path / "gone", "roles/x")


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
