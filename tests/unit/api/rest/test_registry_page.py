"""Pages of registered models: a name is given, an alias moved, rolled back, all with plain forms."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")


def test_a_model_gets_a_name_and_its_alias_is_moved_by_forms(served):
    def post(path, who="red-user", **data):
        return served.ask(who, "POST", f"/registry{path}", data=data)

    assert "Give it a name" in served.ask("red-user", "GET", "/models/job-red/main/0").text
    assert "Give it a name" not in served.ask("red-read", "GET", "/models/job-red/main/0").text
    served.run("job-red-page", "red")
    answer = post("", model="job-red", name="birds", alias="production")
    assert (answer.status_code, answer.headers["location"]) == (303, "/registry/birds")
    assert post("", model="job-red-page", name="birds", alias="").status_code == 303
    move = "/birds/aliases/production"
    assert post(move, version="2", expected="1").status_code == 303
    late = post(move, version="1", expected="1")
    assert (late.status_code, "means version 2 since u moved it" in late.text) == (409, True)
    assert post(f"{move}/rollback", expected="2").status_code == 303
    assert post("/birds/aliases", alias="staging", version="2").status_code == 303
    assert post("/birds/aliases", alias="staging", version="1").status_code == 409
    assert post("/birds/versions/2/remove").status_code == 409
    found = served.ask("red-read", "GET", "/registry/birds")
    for text in (
        "production means version 1, moved by u, ",
        "staging means version 2",
        "rollback",
        "/models/job-red/main/0",
    ):
        assert text in found.text
    assert '<form method="post" action="/registry' not in found.text, "who only reads sees no form"
    assert '<a href="/registry/birds">birds</a>' in served.ask("red-read", "GET", "/registry").text
    assert served.ask("blue-user", "GET", "/registry/birds").status_code == 404
    assert post("/birds/aliases", "red-read", alias="x", version="1").status_code == 403


def test_examples_show_the_models_that_they_have_trained_for_a_team(served):
    assert "Its model will be digits@production" in served.ask("red-user", "GET", "/examples").text
    named = {"model": "job-red", "name": "digits", "alias": "production"}
    assert served.ask("red-user", "POST", "/registry", data=named).status_code == 303
    assert '<a href="/registry/digits">digits@production</a>, version 1' in (
        served.ask("red-read", "GET", "/examples").text
    )
    assert "Its model will be" in served.ask("blue-user", "GET", "/examples").text


def test_a_registered_model_is_asked_about_the_files_of_a_volume_by_a_recipe(served):
    named = {"model": "job-red", "name": "birds", "alias": "production"}
    served.ask("red-user", "POST", "/registry", data=named)
    assert "Ask it about files" in served.ask("red-user", "GET", "/registry/birds").text
    assert "Ask it about files" not in served.ask("red-read", "GET", "/registry/birds").text
    asked = "/new?model=birds%40production&files=songs"
    text = served.ask("red-user", "GET", asked).text
    assert "data: {model: {model: birds@production}, files: {volume: &#34;songs&#34;}}" in text
    assert "python -m trainmaster.inference" in text
    assert served.ask("blue-user", "GET", asked).status_code == 404
    assert served.ask("red-read", "GET", asked).status_code == 403
