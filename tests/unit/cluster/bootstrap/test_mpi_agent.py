"""What starts MPI's programs on other nodes: the environment goes by standard input, never in a command."""

import json
import os
import subprocess
import sys

import pytest

from trainmaster.cluster.bootstrap.cluster_keys import _AGENT

#: Plays ssh: notes how it was called, and runs the command as a login on another machine would.
SSH = """#!/bin/bash
printf '%s\\n' "$@" > "$NOTES"
shift 3
exec env -i PATH="$PATH" /bin/sh -c "$*"
"""
SECRET = "a b\n\"c'$HOME`id`"


@pytest.fixture
def start(tmp_path):
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "agent").write_text(_AGENT.replace("{directory}", "/keys of/1"))

    def start(command, **env):
        around = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(tmp_path / "notes"), **env}
        return subprocess.run(
            ["bash", tmp_path / "agent", "10.0.0.2", command], env=around, capture_output=True, text=True
        )

    return start


def test_the_environment_is_there_and_in_no_command_line(start, tmp_path):
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    done = start(f'{sys.executable} -c "{show}"', WANDB_API_KEY=SECRET, OMPI_MCA_x="1", PWD="/x")
    found = json.loads(done.stdout)
    assert found["WANDB_API_KEY"] == SECRET
    assert "OMPI_MCA_x" not in found, "that is mpirun's own business there"
    notes = (tmp_path / "notes").read_text()
    assert notes.startswith("-F\n/keys of/1/config\n10.0.0.2\n")
    assert "WANDB" not in notes


def test_a_command_is_passed_on_as_mpirun_wrote_it(start):
    done = start('cat; echo "a  b" \'$X\' "$X"; exit 7', X="y")
    assert (done.stdout, done.returncode) == ("a  b $X y\n", 7), "its standard input is empty"
