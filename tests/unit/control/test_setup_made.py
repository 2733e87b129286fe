"""`Setup`: made once, anew for another Python, and what is wrong with a host's Python is said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.control.attempt.setup import AS_ROOT, Setup
from trainmaster.spec.errors import UsageError

MAKES = 'mkdir -p "$3/bin"; ln -s /bin/true "$3/bin/python"'
PYTHON = f'#!/bin/sh\nif [ "$2" = venv ]; then {MAKES}; else exec {sys.executable} "$@"; fi\n'
NO_VENV = '#!/bin/sh\n[ "$1" = -I ] && echo 3.11\nexit 1\n'


def made(directory: Path, script: str, python: str = PYTHON) -> Setup:
    """What runs a script with a Python that makes empty environments."""
    program = directory / "python3"
    program.write_text(python)
    program.chmod(0o755)
    return Setup(
        str(directory / "here"), script, str(directory), {"WORD": "a b"}, str(program), identity="3.11"
    )


def test_it_is_made_once_and_anew_for_another_python(tmp_path: Path) -> None:
    setup = made(tmp_path, 'echo "$WORD" >> made; echo "$PATH" > "$VIRTUAL_ENV/path"')
    assert [setup.make(), setup.make(), replace(setup, identity="3.12").make()] == [True, False, True]
    assert (tmp_path / "made").read_text() == "a b\na b\n"
    assert (tmp_path / "here/path").read_text().startswith(f"{tmp_path}/here/bin:")


def test_a_failure_is_told_in_its_last_words_and_is_tried_again(tmp_path: Path) -> None:
    setup = made(tmp_path, "echo first; echo no such thing >&2; exit 3")
    for _ in range(2):
        with pytest.raises(UsageError, match="exit code 3: first / no such thing") as caught:
            setup.make()
        assert caught.value.hint == f"Its whole output: {tmp_path}/here.log"


def test_a_python_without_venv_is_named_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"install python3\.11-venv"):
        made(tmp_path, "true", NO_VENV).make()


@pytest.mark.parametrize(
    ("is_root", "sudo", "said"),
    [
        (True, "", ""),
        (False, '[ "$2" = -l ] || { shift; "$@"; }', ""),
        (False, '[ "$2" != -l ] || exit 1', "may not become root on .* have touch run there by root"),
    ],
    ids=["root", "may", "may-not"],
)
def test_sudo_is_root_or_says_what_to_do(tmp_path: Path, is_root: bool, sudo: str, said: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if sudo:
        (programs / "sudo").write_text(f"#!/bin/sh\n{sudo}\n")
        (programs / "sudo").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    script = f"{AS_ROOT.replace('$EUID', '0' if is_root else '1000')}\nsudo -E A=1 touch done"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script if is_root else script.replace("-E A=1 ", "")],
        env={"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ((tmp_path / "done").exists(), done.returncode == 0) == (not said, not said), done.stderr
    assert re.search(said, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_runs_as_the_user_that_sudo_names() -> None:
    script = f"{AS_ROOT}\nsudo -u nobody id -un; sudo -n -u root -- id -un; sudo id -un"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["nobody", "root", "root"]


def test_a_full_disk_is_told_with_its_directory(tmp_path: Path) -> None:
    setup = made(tmp_path, "echo 'head: error writing: No space left on device' >&2; exit 1")
    with pytest.raises(UsageError, match="No space left on device") as caught:
        setup.make()
    assert caught.value.hint.startswith(f"Make room at {tmp_path}, then resume. Its whole output: ")
