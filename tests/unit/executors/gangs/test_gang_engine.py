"""A gang whose members run in containers learns from its node what starts them there."""

import json

import pytest

from trainmaster.executors.supervisor.gang_processes import GangProcesses

SAID = {"program": "/usr/bin/podman", "kind": "podman", "rootless": True, "settings": {"HOME": "/home/ann"}}


class Submitter:
    run = "digits-7f3a"


def gang(engine_file):
    container = {
        "image": "debian:12",
        "program": "",
        "kind": "docker",
        "rootless": False,
        "mounts": ["/code"],
        "settings": {},
        "engine_file": str(engine_file),
    }
    keys = {"script": "true", "cwd": "/", "env": {}, "ports": 0, "gpus": 0, "essential": True}
    members = [
        {"name": "worker-0", "container": container, **keys},
        {"name": "worker-1", "container": None, **keys},
    ]
    return GangProcesses.from_request(
        {
            "attempt": "digits-7f3a/train/0/1",
            "directory": "/tmp",
            "grace_s": 1.0,
            "members": members,
            "hold": True,
            "share_gpus": False,
        },
        Submitter(),
    )


def test_the_node_says_what_starts_containers(tmp_path):
    file = tmp_path / "engine.json"
    contained = gang(file)  # before anybody has looked which engine there is
    file.write_text(json.dumps(SAID))
    contained.find_engine()
    container = contained.members[0].container
    assert {key: container[key] for key in SAID} == SAID
    assert (container["image"], container["mounts"]) == ("debian:12", ["/code"])
    # The journal has it: what comes after us ends what is left.
    assert GangProcesses.from_records([contained.start_record()]).engine == {
        key: SAID[key] for key in ("program", "kind", "settings")
    }


def test_nobody_says(tmp_path):
    with pytest.raises(FileNotFoundError):
        gang(tmp_path / "engine.json").find_engine()
    (tmp_path / "engine.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        gang(tmp_path / "engine.json").find_engine()


def test_without_a_file_it_is_as_the_request_says():
    contained = gang("")
    contained.members[0].container["program"] = "/usr/bin/docker"
    contained.find_engine()
    assert contained.members[0].container["program"] == "/usr/bin/docker"
