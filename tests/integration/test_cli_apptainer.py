"""`container: IMAGE` with Apptainer: what differs from docker; `test_cli_containers.py` has the rest."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from aws_stand_in import free_port
from private_engines import APPTAINER, IMAGE, NoEngineError, PrivateEngine, engine_of_module, make_image

from trainmaster.executors.containers.engines import find_engine
from trainmaster.testing.waits import until

pytestmark = pytest.mark.container


engine = engine_of_module("apptainer")


@pytest.fixture
def user(tm, engine):
    """Who has it and no other engine, in a home that anybody may look into."""
    root = Path(tempfile.mkdtemp(prefix="tm-user-", dir="/tmp"))
    root.chmod(0o755)
    found = type(tm)(root)
    only = root / "bin"
    only.mkdir()
    found.env |= engine.env
    for folder in reversed(found.env["PATH"].split(":")):
        for each in Path(folder).glob("*") if Path(folder).is_dir() else ():
            if each.name not in ("docker", "podman"):
                (only / each.name).unlink(missing_ok=True)
                (only / each.name).symlink_to(each)
    del found.env["TRAINMASTER_CONTAINER_ENGINE"]
    found.env["PATH"] = str(only)
    try:
        yield found
        engine.until_empty()
    finally:
        found.clean_up()
        engine.remove_all()
        shutil.rmtree(root)


def anybodys_apptainer(place, programs):
    """A copy that others than root may look into."""
    tree = APPTAINER.parents[1]
    if not tree.is_dir():
        return
    shutil.copytree(tree, place, symlinks=True)
    library = place / "c/usr/lib/x86_64-linux-gnu"
    for program in (place / "usr/bin/apptainer", *place.glob("usr/lib/*/apptainer/bin/starter")):
        options = (
            "--set-interpreter",
            library / "ld-linux-x86-64.so.2",
            "--set-rpath",
            f"{library}:/usr/lib/x86_64-linux-gnu",
        )
        subprocess.run(["patchelf", *options, program], check=True)
    (programs / "apptainer").unlink()
    (programs / "apptainer").symlink_to(place / "usr/bin/apptainer")


def image_file(engine) -> str:
    found = Path(find_engine({**os.environ, **engine.env}).settings["APPTAINER_CACHEDIR"], "trainmaster")
    return str(found / f"{IMAGE}.sif")


@pytest.fixture
def nobody(user, engine):
    """What makes a shell an ordinary user, and the variables for it; one that has an image as a file."""
    shutil.copyfile(image_file(engine), user.root / "of_me.sif")
    uid, gid = (found := pwd.getpwnam("nobody")).pw_uid, found.pw_gid  # one that has a name
    for path in (user.root, user.work, user.notes, user.root / "of_me.sif"):
        os.chown(path, uid, gid)
    # Our own Python, and Apptainer, may lie in root's home, so this user may read everything.
    become = (
        f"setpriv --reuid={uid} --regid={gid} --clear-groups "
        "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search --"
    )
    anybodys_apptainer(user.root / "apptainer", user.root / "bin")
    return become, {**user.env, "HOME": str(user.root)}


def test_an_ordinary_user_trains_in_a_file(user, nobody):
    """Without root and without setuid; nothing is chosen, as there is nothing else."""
    become, env = nobody
    uid, gid = (found := pwd.getpwnam("nobody")).pw_uid, found.pw_gid
    recipe = user.task(
        "id; echo image $FROM_IMAGE; touch here $HOME/there $TRAINMASTER_OUTPUT_DIR/model",
        container=str(user.root / "of_me.sif"),
    )
    run = user.call("run", recipe, "--json", prefix=f'set -- {become} "$@";', env=env).json["run"]
    log = (user.home / "runs" / run / "tasks/main/0/1/worker-0.log").read_text()
    assert f"uid={uid} gid={gid}" in log
    assert "image yes\n" in log
    written = [path for top in (user.home, user.cache) for path in top.rglob("*")]
    assert any(path.name == "here" for path in written)
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in written} == {(uid, gid)}


def test_an_ordinary_user_needs_dev_fuse_or_has_images_unpacked(user, nobody):
    """As docs/how/container.md says: with squashfuse, on a machine whose device is root's alone."""
    become, env = nobody
    os.mknod(device := user.root / "fuse", 0o600 | stat.S_IFCHR, os.makedev(10, 229))
    closed = f"mount --bind {device} /dev/fuse"
    if (library := user.root / "apptainer/c/usr/lib/x86_64-linux-gnu").is_dir():
        # To unpack, Apptainer starts itself among this machine's files: with its C library for all of them.
        there = "/usr/lib/x86_64-linux-gnu"
        closed += f" && mount -t overlay overlay -o lowerdir={library}:{there} {there}"
    prefix = f"""set -- unshare --mount bash -c '{closed} && exec {become} "$@"' - "$@";"""
    recipe = user.task("touch $TRAINMASTER_OUTPUT_DIR/model", container=str(user.root / "of_me.sif"))
    refused = user.call("run", recipe, prefix=prefix, env=env, code=1)
    assert "cannot be started" in refused.out + refused.err
    assert "failed to open /dev/fuse" in refused.out + refused.err
    user.call("run", recipe, prefix=prefix, env={**env, "APPTAINER_UNSQUASH": "1"}, code=0)


def test_under_the_name_of_singularity_it_is_the_same(user):
    """A task and its shell, where no program is called Apptainer; SingularityCE sets fewer variables."""
    (user.root / "bin/apptainer").rename(user.root / "bin/singularity")
    command = "unset APPTAINER_CONTAINER; exec bash -c 'echo image $FROM_IMAGE; sleep 600; :'"
    call = user.start("run", user.task(command, container=IMAGE), "--json")
    run = call.run_id()
    until(lambda: "image yes" in user.logs(run), patience_s=60)
    found = user.call("exec", run, "--", "python3", "-c", "import sys; print(sys.prefix)")
    assert found.out == "/usr/local\n"
    user.call("cancel", run)
    call.wait()


def test_files_that_are_not_there(user):
    refusal = user.refused(user.task("true", container="/no/such.sif"))
    assert "experiments.main.container: there is no image /no/such.sif" in refusal


def test_an_image_of_a_registry_is_brought_once_and_its_digest_recorded(user, engine, tmp_path):
    if (registry := shutil.which("docker-registry")) is None:
        pytest.skip("docker-registry not installed; scripts/build_apptainer.sh installs it")
    try:
        with PrivateEngine("podman", make_image(("bash",), python=False)) as podman:
            port = free_port()
            name = f"localhost:{port}/me/image:1"
            (tmp_path / "config.yml").write_text(
                f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
                f"http: {{addr: '127.0.0.1:{port}'}}\n"
            )
            with (tmp_path / "log").open("wb") as log:
                serving = subprocess.Popen(
                    [registry, "serve", tmp_path / "config.yml"], stdout=log, stderr=log
                )
            try:
                podman.client("tag", IMAGE, name)
                until(lambda: b"listening" in (tmp_path / "log").read_bytes())
                podman.client("push", "--tls-verify=false", name)
                identity = podman.client("image", "inspect", "--format", "{{.Id}}", IMAGE).strip()
                recipe = user.task("echo image $FROM_IMAGE", container=name)
                assert user.call("check", recipe).out
                run = user.run(recipe)["run"]
            finally:
                serving.terminate()
                serving.wait()
    except NoEngineError as error:
        pytest.skip(str(error))
    assert "image yes\n" in user.logs(run)
    again = user.run(recipe)["run"]  # the registry is gone
    assert "image yes\n" in user.logs(again)
    with closing(sqlite3.connect(user.home / "trainmaster.db")) as database:
        assert f'"digest": "{identity}"' in "".join(database.iterdump())


def test_too_much_memory_is_told_as_such(user, engine):
    recipe = user.task(
        "python3 -c 'found = []\nwhile True: found.append(bytearray(1 << 24))'",
        container=IMAGE,
        hardware={"memory": "200MB"},
    )
    said = user.call("run", recipe, code=1).err
    assert "killed: out of memory" in said


def test_a_directory_for_temporary_files_that_is_not_there_is_named(user, engine, tmp_path):
    recipe = user.task("true", container=IMAGE)
    said = user.call("run", recipe, code=None, env={**user.env, "TMPDIR": f"{tmp_path}/gone"}).err
    assert (
        f"{tmp_path}/gone, where containers of Apptainer have their /tmp: No such file or directory" in said
    )
    assert "INTERNAL" not in said
