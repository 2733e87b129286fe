"""Capsules of strangers: what leads out of its place, is damaged or too new is refused."""

from __future__ import annotations

import json
import os
import zipfile

import pytest

from trainmaster.service.runs.capsule import _add_all, _needs, new_file, open_capsule
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

WHOLE = {"format": 1, "needs": [], "experiments": {"train": {"environment": None, "setup": False}}}


def capsule(tmp_path, **files):
    path = tmp_path / "x.capsule"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {"recipe.yaml": "experiments: {a: {command: x}}", **files}.items():
            archive.writestr(name, text)
    return path


def test_a_capsule_is_unpacked_once_and_says_what_is_not_known(tmp_path):
    path = capsule(tmp_path, **{"capsule.json": json.dumps(WHOLE), "code/a.py": "1"})
    found = open_capsule(path, tmp_path / "cache")
    assert (found.recipe.parent / "code" / "a.py").read_text() == "1"
    assert found.notes == ("its environment was not recorded",)
    (found.recipe.parent / "mark").touch()
    assert (open_capsule(path, tmp_path / "cache").recipe.parent / "mark").exists()


def test_directories_without_files_are_part_of_it_and_a_name_that_no_zip_has_is_told(tmp_path):
    (tmp_path / "code" / "logs").mkdir(parents=True)
    files = {"capsule.json": json.dumps(WHOLE)}
    with zipfile.ZipFile(capsule(tmp_path, **files), "a") as archive:
        _add_all(archive, tmp_path / "code", "x-1")
    found = open_capsule(tmp_path / "x.capsule", tmp_path / "cache")
    assert (found.recipe.parent / "code" / "logs").is_dir()
    (tmp_path / "code" / os.fsdecode(b"na\xffme")).touch()
    with zipfile.ZipFile(tmp_path / "y", "w") as archive, pytest.raises(UsageError, match="no UTF-8"):
        _add_all(archive, tmp_path / "code", "x-1")


@pytest.mark.parametrize(
    "files",
    [
        {"../out": "x"},
        {"code/../../out": "x"},
        {"capsule.json": "{"},
        {"capsule.json": json.dumps({**WHOLE, "format": 2})},
        {"capsule.json": json.dumps({**WHOLE, "experiments": {"a": 1}})},
        {"capsule.json": "[]"},
    ],
)
def test_what_is_no_good_capsule_is_refused(tmp_path, files):
    path = capsule(tmp_path, **{"capsule.json": json.dumps(WHOLE), **files})
    with pytest.raises(UsageError):
        open_capsule(path, tmp_path / "cache")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache" / "out").exists()


def test_a_capsule_of_which_the_end_is_missing_is_refused_by_its_own_name(tmp_path):
    path = capsule(tmp_path, **{"capsule.json": json.dumps(WHOLE)})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match=r"x\.capsule is no whole capsule: ") as refused:
        open_capsule(path, tmp_path / "cache")
    assert "export the run again" in refused.value.hint


@pytest.mark.parametrize(
    ("about", "why"),
    [(None, "is no capsule: a zip without capsule.json"), ('{"format": 2, "other": 1}', "format 2, which")],
)
def test_a_zip_of_something_else_and_a_later_format_are_told_by_what_they_are(tmp_path, about, why):
    path = capsule(tmp_path, **({} if about is None else {"capsule.json": about}))
    with pytest.raises(UsageError, match=why):
        open_capsule(path, tmp_path / "cache")


def test_it_names_the_models_of_services_and_the_secrets_of_sinks(tmp_path):
    served = {"serve": {"model": "digits@production"}}
    written = {
        "name": "r",
        "sinks": {"mlflow": {"url": "https://m", "token": "MLFLOW_TOKEN"}},
        "experiments": {"a": {"command": "true", "secrets": ["KEY"]}, "api": served},
    }
    assert list(_needs(Recipe.from_dict(written))) == [
        "experiments.api.serve.model: digits@production must be registered there",
        "secrets: values of KEY, MLFLOW_TOKEN",
    ]


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with (
        pytest.raises(UsageError, match="cannot be written: No such file") as refused,
        new_file(tmp_path / "no" / "x.capsule"),
    ):
        pass
    assert refused.value.hint == "Make its directory first."
