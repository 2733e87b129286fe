"""Tab in bash, zsh and fish: verbs, options and runs are offered by the shell itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: How a shell is asked, without anybody at a terminal, what it would offer for a line.
ASK = {
    "bash": """
        eval "$(_TRAINMASTER_COMPLETE=source_bash trainmaster)"
        read -ra COMP_WORDS <<< "$LINE"; [[ $LINE == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        complete -p trainmaster >/dev/null
        _trainmaster_completion trainmaster
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { [[ $2 == trainmaster ]] && complete=$1 }
        _arguments() { print -rl -- "$@" }
        _files() { }
        eval "$(_TRAINMASTER_COMPLETE=source_zsh trainmaster)"
        words=(${(s: :)LINE}); [[ $LINE == *" " ]] && words+=("")
        CURRENT=${#words}
        $complete
    """,
    "fish": """
        _TRAINMASTER_COMPLETE=source_fish trainmaster | source
        complete -C "$LINE"
    """,
}


@pytest.fixture(params=ASK)
def offered(request, tm):
    """What a shell offers for a line."""
    shell = shutil.which(request.param)
    if shell is None:
        pytest.skip(f"no {request.param}")

    def ask(line):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**tm.env, "PATH": path, "LINE": line, "HOME": str(tm.root)}
        done = subprocess.run(
            [shell, "-c", ASK[request.param]], env=env, capture_output=True, text=True, timeout=60
        )
        assert not done.stderr, done.stderr
        return done.stdout

    ask.shell = request.param
    return ask


def test_verbs_options_and_runs(tm, offered):
    assert "status" in offered("trainmaster sta")
    assert not tm.home.exists(), "Tab makes nothing"
    assert "--since" in offered("trainmaster logs --si")
    run = tm.run(tm.task("true"))["run"]
    if offered.shell == "bash":  # each question starts two processes, and what is answered is the same
        assert "versions" in offered("trainmaster volume ver")
        assert "fsck" in offered("trainmaster models fs")
        assert run in offered("trainmaster logs jo")
        tm.call("label", run, "name=baseline")
        assert "baseline" in offered("trainmaster logs bas")
        assert "; did you mean baseline?" in tm.call("logs", "basline", code=2).err
        assert f"; did you mean {run}?" in tm.call("status", f"{run[:-1]}x", code=2).err
        assert "did you mean" not in tm.call("status", "nosuch", code=2).err
    assert run in offered("trainmaster status ")
