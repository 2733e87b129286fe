"""Which engine is taken, and what is made of its answers; small scripts play the engines."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from trainmaster.executors.containers import engines
from trainmaster.executors.containers.engines import ContainerEngine, find_engine, last_words
from trainmaster.objects.errors import FullStoreError
from trainmaster.spec.errors import UsageError


@pytest.fixture
def programs(tmp_path):
    """Makes programs; gives an environment with nothing but them on PATH."""

    def make(**scripts):
        for name, script in scripts.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/bash\n{script}\n")
            path.chmod(0o755)
        return {"PATH": str(tmp_path), "TOKEN": "secret", "DOCKER_HOST": "unix:///d"}

    return make


DOCKER = """echo '["name=seccomp"]'"""
PODMAN = "echo true"
UNREACHABLE = "echo 'Cannot connect to the Docker daemon at unix:///d.' >&2; exit 1"


def test_docker_comes_first_and_gets_its_settings_only(programs):
    found = find_engine(programs(docker=DOCKER, podman=PODMAN))
    assert (found.kind, Path(found.program).name, found.rootless) == ("docker", "docker", False)
    assert found.settings.keys() == {"PATH", "DOCKER_HOST"}


def test_podman_where_docker_does_not_answer(programs):
    found = find_engine(programs(docker=UNREACHABLE, podman=PODMAN))
    assert (found.kind, found.rootless) == ("podman", True)
    assert find_engine(programs(docker="echo null", podman="echo false")).rootless is False


def test_rootless_docker(programs):
    assert find_engine(programs(docker="""echo '["name=seccomp","name=rootless"]'""")).rootless


def test_the_caller_chooses(programs):
    env = programs(docker=DOCKER, podman=PODMAN)
    assert find_engine({**env, "TRAINMASTER_CONTAINER_ENGINE": "podman"}).kind == "podman"
    with pytest.raises(UsageError, match="'nerdctl' is no container engine"):
        find_engine({**env, "TRAINMASTER_CONTAINER_ENGINE": "nerdctl"})


def test_apptainer_where_there_is_nothing_else(programs):
    env = programs(docker=UNREACHABLE, apptainer="echo 1.4.5")
    assert find_engine(env).kind == "apptainer"
    with pytest.raises(
        UsageError, match=r"needs docker or podman: docker does not answer .*podman is not installed"
    ):
        find_engine(env, engines.APART)
    with pytest.raises(UsageError, match="'apptainer' cannot keep tasks of others apart"):
        find_engine({**env, "TRAINMASTER_CONTAINER_ENGINE": "apptainer"}, engines.APART)
    with pytest.raises(UsageError, match=r"docker knows no image that is a file: /x\.sif"):
        ContainerEngine("docker", "/bin/false").pull("/x.sif", set())


def test_enroot_comes_last(programs):
    assert find_engine(programs(apptainer=UNREACHABLE, enroot="echo 4.1.2")).kind == "enroot"
    env = programs(apptainer="echo 1.4.5")
    assert find_engine(env).kind == "apptainer"
    assert find_engine({**env, "TRAINMASTER_CONTAINER_ENGINE": "enroot"}).kind == "enroot"


def test_singularity_where_apptainer_is_missing(programs):
    env = programs(singularity="echo singularity-ce version 4.1.1")
    for chosen in ({}, {"TRAINMASTER_CONTAINER_ENGINE": "apptainer"}):
        found = find_engine({**env, **chosen, "SINGULARITY_CACHEDIR": "/scratch/ann"})
        assert (found.kind, Path(found.program).name) == ("apptainer", "singularity")
        assert found.settings["SINGULARITY_CACHEDIR"] == "/scratch/ann"
    assert Path(find_engine({**env, **programs(apptainer="echo 1.4.5")}).program).name == "apptainer"


@pytest.mark.parametrize(
    ("image", "host"), [("python:3.12", "docker.io"), ("me/x", "docker.io"), ("h:5000/me/x:1", "h:5000")]
)
def test_apptainer_names_the_registry_to_log_in_to(programs, tmp_path, image, host):
    env = programs(apptainer="[ $1 = version ] || { echo 'FATAL:   authentication required'; exit 255; }")
    with pytest.raises(UsageError, match=r": authentication required\n") as caught:
        find_engine({**env, "APPTAINER_CACHEDIR": str(tmp_path)}).pull(image, set())
    assert caught.value.hint.endswith(f" docker://{host}`.")


def test_none_is_there(programs):
    with pytest.raises(
        UsageError, match=r"docker does not answer .Cannot connect.*podman is not installed"
    ) as caught:
        find_engine(programs(docker=UNREACHABLE))
    assert "systemctl start docker" in caught.value.hint


def test_images(programs, tmp_path):
    answer = '{"Id": "sha256:1", "Config": {"Env": ["PATH=/bin", "A=b=c"]}, "RepoDigests": [%s]}'
    for name, digests in {"here": "", "podmans": '"localhost/a@sha256:2"', "pulled": '"a@sha256:2"'}.items():
        (tmp_path / f"{name}.json").write_text(f"[{answer % digests}]")
    programs(docker=f'cat "{tmp_path}/$3.json"')
    engine = ContainerEngine("docker", str(tmp_path / "docker"), settings={"PATH": os.defpath})
    found = engine.image("here")
    assert found is not None
    assert (found.id, found.env) == ("1", {"PATH": "/bin", "A": "b=c"})
    known = [engine.image(name) for name in ("here", "podmans", "pulled")]
    assert [image and image.is_own for image in known] == [True, True, False]
    assert engine.image("elsewhere") is None


def test_an_image_is_taken_under_its_name(programs, tmp_path):
    """Podman calls `a:1` of docker `localhost/a:1`, which it finds; docker does not find podman's."""
    programs(
        docker=f"""case $1 in
        load) cat > "{tmp_path}/loaded"; echo "Loaded image: localhost/a:1";;
        tag) echo "$2 $3" > "{tmp_path}/tag";;
        *) exit 1;;
        esac"""
    )
    engine = ContainerEngine("docker", str(tmp_path / "docker"), settings={"PATH": os.defpath})
    children: set[int] = set()
    engine.load("a:1", io.BytesIO(b"layers" * 100_000), children)
    assert (tmp_path / "loaded").read_bytes() == b"layers" * 100_000
    assert (tmp_path / "tag").read_text() == "localhost/a:1 a:1\n"
    assert not children
    programs(docker="echo 'no space left on device' >&2; exit 1")
    with pytest.raises(FullStoreError, match="docker does not take the image a:1: no space left on device"):
        engine.load("a:1", io.BytesIO(b"layers" * 100_000), children)
    with pytest.raises(FullStoreError, match="a:1 is not on this machine and cannot be pulled") as full:
        engine.pull("a:1", children)
    assert "docker system df" in full.value.hint
    assert "login" not in full.value.hint


def test_a_pull_may_take_long_once_the_registry_has_answered(programs, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "CONNECT_S", 1.0)
    answers = "echo '1: Pulling from library/here'; sleep 1.2; echo 'no such host' >&2; exit 1"
    programs(docker=f"if [[ $2 = here ]]; then {answers}; fi; sleep 60")
    engine = ContainerEngine("docker", str(tmp_path / "docker"), settings={"PATH": os.defpath})
    children: set[int] = set()
    with pytest.raises(UsageError, match="here is not on this machine and cannot be pulled: no such host"):
        engine.pull("here", children)
    with pytest.raises(UsageError, match="no registry has answered within 1 s"):
        engine.pull("nowhere", children)
    assert not children


def test_last_words():
    said = "Using default tag: latest\nError response from daemon: no such host\nSee 'docker run --help'.\n\n"
    assert last_words(said) == "no such host"
    assert last_words("") == "it said nothing"
