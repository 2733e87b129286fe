"""What a member finds in its environment."""

from __future__ import annotations

from pathlib import Path

from trainmaster.control.task.environment import base_environment, member_environment, read_secrets
from trainmaster.launchers import Gang, Member, get_launcher


def test_an_active_virtual_environment_comes_first_else_our_own():
    caller = {"PATH": "/usr/bin:/env/bin", "VIRTUAL_ENV": "/env"}
    assert base_environment(caller, "/ours/bin/python")["PATH"] == "/env/bin:/usr/bin"
    assert base_environment({"PATH": "/usr/bin"}, "/ours/bin/python")["PATH"] == "/ours/bin:/usr/bin"


def test_variables_of_a_surrounding_task_are_left_out_settings_are_not():
    env = base_environment(
        {"TRAINMASTER_TASK": "1", "TRAINMASTER_PARAM_LR": "2", "TRAINMASTER_HOME": "/h", "HOME": "/me"}
    )
    assert {key for key in env if key.startswith("TRAINMASTER_")} == {"TRAINMASTER_HOME"}
    assert env["HOME"] == "/me"


def test_output_is_not_held_back_unless_the_caller_says_so():
    assert base_environment({})["PYTHONUNBUFFERED"] == "1"
    assert base_environment({"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""


def environment(launcher: str = "plain", index: int = 0, **what):
    members = tuple(Member("worker", number, "127.0.0.1", (29500,)) for number in range(2))
    variables = {"TRAINMASTER_RUN": "r", **what.get("recipe_env", {}), "TRAINMASTER_OUTPUT_DIR": "/out"}
    base = what.get("base", {"PATH": "/usr/bin"})
    return member_environment(
        Gang(members, 1), members[index], get_launcher(launcher), base, variables, what.get("venv")
    )


def test_a_member_knows_who_it_is():
    env = environment(index=1)
    assert (env["TRAINMASTER_ROLE"], env["TRAINMASTER_INDEX"], env["TRAINMASTER_WORLD_SIZE"]) == (
        "worker",
        "1",
        "2",
    )
    assert (env["TRAINMASTER_RUN"], env["TRAINMASTER_OUTPUT_DIR"]) == ("r", "/out")


def test_the_launcher_has_the_last_word_and_places_win_over_the_recipe():
    recipe_env = {"RANK": "77", "TRAINMASTER_OUTPUT_DIR": "/elsewhere", "MINE": "1"}
    env = environment("torchrun", 1, recipe_env=recipe_env)
    assert (env["RANK"], env["TRAINMASTER_OUTPUT_DIR"], env["MINE"]) == ("1", "/out", "1")


def test_the_launchers_defaults_yield_to_everyone():
    launcher = get_launcher("torchrun")
    members = tuple(Member("worker", number, "127.0.0.1", (29500,)) for number in range(2))
    defaults = launcher.defaults(Gang(members, 1), members[0])
    for name, value in defaults.items():
        assert environment("torchrun")[name] == value
        assert environment("torchrun", recipe_env={name: "mine"})[name] == "mine"
        assert name not in environment("torchrun", base={name: "inherited"})


def test_the_setups_environment_comes_first():
    env = environment(venv=Path("/cache/venv"))
    assert (env["PATH"], env["VIRTUAL_ENV"]) == ("/cache/venv/bin:/usr/bin", "/cache/venv")
    env = environment(venv=Path("/cache/venv"), recipe_env={"PATH": "/mine"})
    assert env["PATH"] == "/cache/venv/bin:/mine"


def test_secrets_come_from_the_caller_then_from_the_file(tmp_path: Path):
    file = tmp_path / "secrets"
    file.write_text("A = from file \nB=x=y\n\nbroken\nD=unasked\n")
    file.chmod(0o600)
    found, missing = read_secrets(["A", "B", "C"], {"A": "from caller"}, file)
    assert found == {"A": "from caller", "B": "x=y"}
    assert missing == ["C"]
    assert read_secrets(["A"], {}, tmp_path / "none") == ({}, ["A"])
