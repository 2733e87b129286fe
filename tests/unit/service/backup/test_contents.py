"""What of a home a backup has, and in which order."""

from __future__ import annotations

import pytest

from trainmaster.service.backup.writing import is_kept, order


@pytest.mark.parametrize(
    "path",
    [
        "identity", "server.key", "secrets", "known_hosts", "clusters/c-1/database", "local-runs",
        "store/volumes/pets/chunks/81/81c4", "store/runs/job-1.json", "snapshots/01c6/train.py",
        "runs/job-1/tasks/main/0/1/worker-0.log", "runs/job-1/code/lab/x", "runs/job-1/inputs/hdfs-a.json",
        "runs/job-1/inputs", "taken/job-1/runs/job-1/code/a", "uploads/ann/code/ab",
    ],
)  # fmt: skip
def test_what_is_of_the_home_is_kept(path):
    assert is_kept(path)


@pytest.mark.parametrize(
    "path",
    [
        "trainmaster.db", "trainmaster.db-wal", "supervisor", "supervisor/socket", "servers/1-a.wake",
        "drivers/0.log", "access/job-1/key", "lab", "taken/job-1/lab", "store/.pets.in-the-making-0/x",
        "runs/job-1/inputs/volume-0a", "runs/job-1/inputs/volume-0a.lock", "taken/a/runs/a/inputs/model-x",
        "runs/job-1/tasks/main/0/1/tmp", "runs/job-1/tasks/main/0/1/staging.lock",
        ".identity.0123456789abcdef", "providers/.x.json.0123456789abcdef",
        "providers/slurm/.x.json.0123456789abcdef", "clusters/c-1/.database.0123456789abcdef",
    ],
)  # fmt: skip
def test_what_is_of_the_machine_or_made_again_is_not(path):
    assert not is_kept(path)


def test_what_refers_to_others_is_listed_first():
    paths = [
        "store/volumes/pets/chunks/81/81c4",
        "store/volumes/pets/manifests/9f.parquet",
        "store/volumes/pets/heads/000001.json",
        "store/models/job-1/main/0/manifest.json",
        "runs/job-1/code/manifest.json",
    ]
    assert [order(path) for path in paths] == [2, 1, 0, 0, 2]
