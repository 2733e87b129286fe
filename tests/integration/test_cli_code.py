"""`code:` (what is taken, when, and how much) and `setup:` (made once, kept)."""

from __future__ import annotations

import subprocess
import zipfile


def test_a_resume_uses_the_code_of_the_start(tm):
    script = tm.write("train.sh", "echo first >> $NOTES/versions; test -e $NOTES/fixed\n")
    recipe = tm.task("bash train.sh")
    run = tm.run(recipe, code=1)["run"]
    script.write_text("echo second >> $NOTES/versions\n")
    tm.write("new.sh", "")
    (tm.notes / "fixed").touch()
    told = tm.call("resume", run).err
    assert f"note: train.sh: changed since {run} was started, which goes on with its own copy; " in told
    assert f"`trainmaster run {recipe}` is a new run with what is there now" in told
    assert tm.marks("versions") == ["first", "first"]
    tm.run(recipe)
    assert tm.marks("versions")[2:] == ["second"]


def test_editing_while_it_runs_changes_nothing(tm):
    script = tm.write("train.sh", "echo begin; until [ -e $NOTES/go ]; do sleep 0.05; done\ncat data.txt\n")
    tm.write("data.txt", "old\n")
    call = tm.start("run", tm.task("touch $NOTES/up; bash train.sh"))
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    script.write_text("echo edited\n" * 100)
    tm.write("data.txt", "new\n")
    (tm.notes / "go").touch()
    call.wait(0)
    assert tm.logs(run) == "begin\nold\n"


def test_what_a_task_writes_into_its_code_does_not_come_back(tm):
    recipe = tm.task("echo more >> train.txt; echo x > made.txt; cat train.txt")
    tm.write("train.txt", "one\n")
    first, second = (tm.logs(tm.run(recipe)["run"]) for _ in range(2))
    assert first == second == "one\nmore\n"
    assert (tm.work / "train.txt").read_text() == "one\n"
    assert not (tm.work / "made.txt").exists()


def test_gitignore_is_respected(tm):
    tm.write(".gitignore", "*.ckpt\n/data/\n!keep.ckpt\n")
    tm.write("sub/.gitignore", "secret.txt\n")
    for name in (
        "big.ckpt",
        "keep.ckpt",
        "data/huge.bin",
        "sub/data/ok",
        "sub/secret.txt",
        "train.py",
        ".git/config",
    ):
        tm.write(name, "x\n")
    run = tm.run(tm.task("find . -type f | sort"))["run"]
    assert tm.logs(run).split() == [
        "./.gitignore", "./keep.ckpt", "./recipe.yaml", "./sub/.gitignore", "./sub/data/ok", "./train.py",
    ]  # fmt: skip


def test_over_100_mb_is_refused_and_the_folders_named(tm):
    for name, megabytes in (("runs/old.bin", 70), ("weights/a.bin", 40), ("small/b.bin", 1)):
        path = tm.write(name, "")
        with path.open("r+b") as file:
            file.truncate(megabytes << 20)
    refusal = tm.refused(tm.task("true"))
    assert "100" in refusal
    assert refusal.index("runs") < refusal.index("weights")
    assert ".gitignore" in refusal
    tm.write(".gitignore", "runs/\nweights/\n")
    tm.run(tm.task("true"))


def test_code_may_be_another_directory(tm):
    (tm.root / "elsewhere").mkdir()
    (tm.root / "elsewhere" / "train.sh").write_text("echo from elsewhere\n")
    for code in ("../elsewhere", str(tm.root / "elsewhere")):
        recipe = tm.recipe({"code": code, "experiments": {"main": {"command": "bash train.sh"}}})
        assert tm.logs(tm.run(recipe)["run"]) == "from elsewhere\n"
    missing = tm.recipe({"code": "../nowhere", "experiments": {"main": {"command": "true"}}})
    result = tm.call("run", missing, code=2)
    assert "nowhere" in result.err


def test_a_wheel_runs_its_main(tm):
    wheel = tm.work / "job-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("main.py", "import job.part, sys\nprint(job.part.NAME, sys.argv[1:])\n")
        archive.writestr("job/__init__.py", "")
        archive.writestr("job/part.py", "NAME = 'wheel'\n")
        archive.writestr("job-1.0.dist-info/METADATA", "Name: job\nVersion: 1.0\n")
    recipe = tm.recipe({"code": wheel.name, "experiments": {"main": {"command": "python main.py a"}}})
    assert tm.logs(tm.run(recipe)["run"]) == "wheel ['a']\n"


def test_links_and_modes_survive(tm):
    tm.write("tool.sh", "#!/bin/sh\necho tool\n", mode=0o755)
    (tm.work / "link.sh").symlink_to("tool.sh")
    (tm.work / "dangling").symlink_to("nowhere")
    (tm.work / "umlaut \u00e4\n.txt").write_text("odd name\n")
    recipe = tm.task("./tool.sh; ./link.sh; test ! -e dangling; cat umlaut*")
    result = tm.call("run", recipe, "--json", code=None)
    assert result.code in (0, 2), result.err
    assert result.code or tm.logs("latest") == "tool\ntool\nodd name\n"


def test_a_git_repository(tm):
    bare = tm.root / "repository"
    script = (
        "git init -q -b main . && git config user.email a@b && git config user.name n && echo one > f "
        "&& git add f && git commit -qm 1 && git tag v1 && echo two > f && git commit -qam 2"
    )
    bare.mkdir()
    subprocess.run(["bash", "-c", script], cwd=bare, check=True, env=tm.env)
    for ref, expected in (("@v1", "one\n"), ("@main", "two\n")):
        recipe = tm.recipe({"code": f"git+file://{bare}{ref}", "experiments": {"main": {"command": "cat f"}}})
        assert tm.logs(tm.run(recipe)["run"]) == expected


def test_setup_is_made_once_and_comes_first_on_path(tm):
    tm.write("tool.txt", "version 1\n")
    setup = """
        echo made >> $NOTES/made
        printf '#!/bin/sh\\necho tool %s\\n' "$(cat tool.txt)" > $VIRTUAL_ENV/bin/tool
        chmod +x $VIRTUAL_ENV/bin/tool
    """
    recipe = tm.task(
        "tool; python -c 'import sys; print(sys.prefix)'", setup=setup, parameters={"x": [1, 2, 3]}
    )
    runs = [tm.run(recipe)["run"] for _ in range(2)]
    assert tm.marks("made") == ["made"]
    for run in runs:
        log = tm.logs(run)
        assert log.count("tool version 1") == 3
        assert log.count(f"{tm.cache}/environments/") == 3
    tm.write("tool.txt", "version 2\n")
    assert tm.logs(tm.run(recipe)["run"]).count("tool version 2") == 3
    assert tm.marks("made") == ["made", "made"]


def test_setup_installs_a_package(tm):
    tm.write(
        "greet/pyproject.toml",
        """
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
    """,
    )
    tm.write(
        "greet/backend.py",
        """
        import zipfile

        def build_wheel(directory, config=None, metadata=None):
            name = "greet-1.0-py3-none-any.whl"
            with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
                wheel.writestr("greet.py", "TEXT = 'hello from a package'")
                info = "greet-1.0.dist-info/"
                wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: greet\\nVersion: 1.0\\n")
                kind = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
                wheel.writestr(info + "WHEEL", kind)
                wheel.writestr(info + "RECORD", "")
            return name
    """,
    )
    recipe = tm.task(
        "python -c 'import greet; print(greet.TEXT)'",
        setup="pip install --no-index --no-build-isolation ./greet",
    )
    assert tm.logs(tm.run(recipe)["run"]) == "hello from a package\n"


def test_a_failing_setup_names_its_log(tm):
    recipe = tm.task("touch $NOTES/ran", setup="echo the compiler is missing; exit 9", retries=1)
    result = tm.call("run", recipe, "--json", code=1)
    assert tm.summary(result)["reason"] == "USER_ERROR"
    assert "exit code 9" in result.err
    assert "the compiler is missing" in result.err
    log = next(line for line in result.err.split() if line.endswith(".log"))
    assert log.startswith(str(tm.cache))
    assert (tm.cache / log).read_text() == "the compiler is missing\n"
    assert not (tm.notes / "ran").exists()
    tm.until_quiet()
