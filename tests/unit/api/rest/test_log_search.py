"""Logs of operating systems, and search in all logs: by REST and on pages, only of what one sees."""

from __future__ import annotations

import pytest
from served_home import Served

from trainmaster.control.attempt.system_log import put_system_log
from trainmaster.db.queries import ALL_RUNS
from trainmaster.service.runs import log_search
from trainmaster.service.runs.log_search import OF_A_RUN, search_logs


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs of two teams and of the owner, whose logs have the same word."""
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    found = Served(tmp_path_factory.mktemp("written"))
    for run in ("job-red", "job-blue", "job-own"):
        place = found.service.home.attempt(run, "main", 0, 1)
        place.log("worker-0").write_bytes(f"begin\nCUDA error | of {run}\rstep 2\n<b>end\xff\n".encode())
        put_system_log(place, f"i-{run}", f"NVRM: Xid, cuda error of {run}\n")
    yield found
    found.service.close()


def asked(written, who, **query):
    return written.ask(who, "GET", "/api/v1/logs", params=query)


def test_lines_of_all_runs_that_one_sees_and_of_no_others(written):
    answer = asked(written, "red-read", text="cuda ERROR").json()
    assert answer == {
        "lines": [
            {"run": "job-red", "experiment": "main", "task": 0, "attempt": 1, "member": member, "line": line}
            for member, line in (
                ("system-i-job-red", "NVRM: Xid, cuda error of job-red"),
                ("worker-0", "CUDA error | of job-red\rstep 2"),
            )
        ],
        "runs": 1,
        "cut": [],
        "next": None,
    }
    assert {each["run"] for each in asked(written, "blue-user", text="cuda").json()["lines"]} == {"job-blue"}
    everything = asked(written, "admin", text="cuda error of").json()
    assert [each["run"] for each in everything["lines"]] == ["job-blue", "job-own", "job-red"]
    assert asked(written, "red-read", text="of job-blue").json()["lines"] == []
    assert asked(written, "red-read", text="c.da").json()["lines"] == [], "a text, and no pattern"


def test_what_cannot_be_asked_is_said(written):
    assert asked(written, "red-read", text="").status_code == 422
    assert asked(written, "red-read", text="a", limit=0).status_code == 422
    assert asked(written, "red-read", text="a", since="soon").status_code == 422
    assert asked(written, "red-read", text="a", cursor="job-blue").status_code == 404, "of another team"
    assert asked(written, "red-infer", text="a").status_code == 403


def test_it_goes_on_where_it_ended(written):
    first = asked(written, "admin", text="cuda", limit=2).json()
    assert [each["run"] for each in first["lines"]] == ["job-blue", "job-blue"]
    assert (first["runs"], first["next"]) == (1, "job-blue")
    second = asked(written, "admin", text="cuda", limit=1, cursor="job-blue").json()
    assert (second["cut"], second["next"]) == (["job-own"], "job-own"), "it has one line more"
    assert asked(written, "admin", text="cuda", cursor="job-red").json()["lines"] == []
    assert asked(written, "admin", text="cuda", since="1m").json()["lines"] == [], "they ended long ago"


def test_one_answer_takes_no_longer_than_it_may_and_gives_a_few_lines_of_each_run(written, monkeypatch):
    late = search_logs(written.service, ALL_RUNS, "cuda", within_s=-1.0)
    assert (late["lines"], late["runs"], late["cut"], late["next"]) == ([], 1, ["job-blue"], "job-blue")
    monkeypatch.setattr(log_search, "OF_A_RUN", 1)
    found = search_logs(written.service, ALL_RUNS, "cuda")
    assert [each["run"] for each in found["lines"]] == found["cut"] == ["job-blue", "job-own", "job-red"]
    assert OF_A_RUN > 1


def test_logs_of_machines_are_shown_when_they_are_asked_for(written):
    def ask(query):
        return written.ask("red-read", "GET", f"/api/v1/runs/job-red/logs{query}")

    assert "NVRM" not in ask("").text
    assert ask("?system=true").text == "main/0#1 system-i-job-red | NVRM: Xid, cuda error of job-red\n"
    assert ask("?system=true&member=i-job-red&text=xid").text.endswith("of job-red\n")
    assert "nothing is kept" in ask("?system=true&member=i-9").text
    assert written.ask("blue-read", "GET", "/api/v1/runs/job-red/logs?system=true").status_code == 404


def test_a_machine_of_the_servers_own_is_asked_for_nobody_else(written):
    for who, code in (("red-user", 403), ("red-read", 403), ("blue-user", 404)):
        answer = written.ask(who, "POST", "/api/v1/runs/job-red/logs/system")
        assert answer.status_code == code, answer.text


def test_pages(written):
    def page(who, path):
        answer = written.ask(who, "GET", path)
        assert answer.status_code == 200, answer.text
        return answer.text

    found = page("admin", "/logs?text=cuda")
    assert "worker-0 | CUDA error | of job-red" in found
    assert found.count("<h2>") == 3
    assert "3 runs were looked through" in found
    assert 'href="/runs/job-red/logs?text=cuda"' in found
    assert "&lt;b&gt;end" in page("admin", "/logs?text=<b>end")
    assert "job-blue" not in page("red-read", "/logs?text=cuda")
    assert "No line has that in it." in page("red-read", "/logs?text=job-blue")
    assert 'action="/logs"' in page("red-read", "/runs")
    shown = page("red-user", "/runs/job-red/logs?system=1")
    assert "NVRM: Xid" in shown
    assert 'action="/runs/job-red/logs/system"' in shown
    assert "live.js" not in shown
    assert "NVRM" not in page("red-read", "/runs/job-red/logs?text=cuda&system=")
