"""The pure parts of `benchmarks/papers`: who wins, where it saturates, what the papers' own numbers say."""

from __future__ import annotations

import doctest
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

PAPERS = Path(__file__).resolve().parents[3] / "benchmarks" / "papers"
NAMES = (
    *("claims", "common", "tables", "images", "laboratory", "seeds", "results"),
    *("anwar", "fc2", "hyper", "hyper_files", "jorge", "accuracy", "jorge_im", "pages"),
)


@pytest.fixture(scope="module")
def papers() -> Iterator[dict[str, ModuleType]]:
    """The scripts as modules, which they are only for each other."""
    path, kept = list(sys.path), {name: sys.modules.pop(name, None) for name in NAMES}
    sys.path[:0] = [str(PAPERS), str(PAPERS.parent)]
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path[:] = path
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module:
            sys.modules[name] = module


@pytest.mark.parametrize("name", ["claims", "tables", "images", "fc2", "results"])
def test_what_their_docstrings_say_is_so(papers: dict[str, ModuleType], name: str) -> None:
    done = doctest.testmod(papers[name], optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted
    assert not done.failed


@given(st.dictionaries(st.integers(1, 9), st.floats(0.1, 100), min_size=1))
def test_the_fastest_is_always_among_the_best(papers: dict[str, ModuleType], times: dict[int, float]) -> None:
    found = papers["tables"].best(times)
    assert min(times, key=times.__getitem__) in found
    assert all(times[one] <= 1.1 * min(times.values()) for one in found)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1), min_size=1, max_size=5))
def test_falls_is_what_trying_all_choices_says(
    papers: dict[str, ModuleType], series: list[list[int]]
) -> None:
    truth = any(all(a >= b for a, b in itertools.pairwise(choice)) for choice in itertools.product(*series))
    assert papers["tables"].falls(series) == truth


def test_the_papers_own_winners(papers: dict[str, ModuleType]) -> None:
    """Where their fourth machine works, their data have the shapes that the experiment looks for."""
    anwar = papers["anwar"]
    theirs = anwar.paper()
    assert theirs[64000, 0, 4] == 419
    assert theirs[6400, 60, 1] == pytest.approx(96 * 1.4)
    seen = anwar.seen(theirs, [192, 1280, 6400], [0, 20, 40])
    assert seen["without latency and with the largest batch, four machines win"].holds
    assert seen["with the smallest batch a single machine wins at any latency"].holds
    assert seen["the larger the batch, the more machines win (each latency)"].holds


def test_the_optimum_has_to_move_with_the_latency(papers: dict[str, ModuleType]) -> None:
    """As measured in the lab at two of the batches that `--quick` takes; then where four always win."""
    anwar = papers["anwar"]
    claim = "the more latency, the fewer machines win (each batch)"
    lab = {
        (1280, 0): (6.3, 4.2, 3.7, 4.2), (1280, 20): (5.6, 8.2, 12.8, 19.1),
        (6400, 0): (36.3, 23.8, 15.3, 11.3), (6400, 20): (35.1, 21.6, 25.1, 25.9),
    }  # fmt: skip
    epochs = {(*cell, n): times[n - 1] for cell, times in lab.items() for n in anwar.MACHINES}
    seen = anwar.seen(epochs, [1280, 6400], [0, 20])[claim]
    assert seen.holds
    assert seen.here == "3, 1 (1,280); 4, 2 (6,400) at 0, 20 ms"
    same = {(b, ms, n): 40.0 / n for b in (1280, 6400) for ms in (0, 20) for n in anwar.MACHINES}
    assert not anwar.seen(same, [1280, 6400], [0, 20])[claim].holds


def test_what_scala_opts_cluster_costs(papers: dict[str, ModuleType]) -> None:
    """Saturated at two workers: they take as long as five, for 0.29 of 0.56 dollars an hour."""
    fc2 = papers["fc2"]
    rates = {(fc2.NARROW, 128, n): min(n, 2) * 10.0 for n in range(1, 6)}
    cluster = {
        "worker": {"instance": "t2.large", "count": 2, "usd_per_hour": 0.0928},
        "parameter_server": {"instance": fc2.NARROW, "usd_per_hour": 0.1},
    }
    pick = {"cluster": cluster, "types": {"traffic_mbps": {fc2.WORKER: 25.0}}}
    found = fc2.chosen([128], rates, {128: pick})[128]
    assert (found["workers"], found["knee"], found["time"], found["mbps"]) == (2, 2, 1.0, 200.0)
    assert found["cost"] == pytest.approx(0.2856 / 0.564, abs=0.001)


def test_a_training_that_was_given_up_is_no_winner(papers: dict[str, ModuleType]) -> None:
    accuracy = papers["accuracy"]
    there, given_up = {"accuracy": 0.949999988}, {"accuracy": 0.5}
    found = {(ms, n): [there if n == 1 else given_up] for ms in (0, accuracy.FAR_MS) for n in (1, 2, 4)}
    times = {(ms, n): 20.0 / n for ms, n in found}
    seen = accuracy.seen(times, {key: 100.0 / key[1] for key in found}, found)
    sooner, fewer, below_four, *_, alike = seen.values()
    assert not sooner.holds
    assert sooner.here == "20.0 s with 1, over 10.0 s with 2, over 5.0 s with 4"
    assert sooner.otherwise == alike.otherwise == "a training had not reached 95% after 30 s"
    assert not fewer.holds
    assert not below_four.holds


def test_a_synchronous_step_counts_once_per_worker(papers: dict[str, ModuleType]) -> None:
    jorge = papers["jorge"]
    row = {"workers": 3, "slow": 1.0, "steps": 10, "began": 0.0, "ended": 2.0}
    watched = [{"at": at, "received": at * 1000, "sent": 0, "cpu_s": at / 10} for at in (0.0, 1.0, 2.0)]
    done = papers["laboratory"].Finished(
        "run", {"chief-0": [row | {"kind": "sync"}, row | {"kind": "async"}], "ps-0": watched}, 1.0, 0.0
    )
    cells = jorge.cells("t2.small", done)
    assert cells["t2.small", "sync", 3, 1.0].steps_per_s == [15.0]
    assert cells["t2.small", "async", 3, 1.0].steps_per_s == [5.0]
    assert cells["t2.small", "async", 3, 1.0].cpu == [pytest.approx(0.1)]


def event(at: float, experiment: str, after: str) -> dict[str, object]:
    return {"at": at, "id": at, "kind": "task", "experiment": experiment, "after": after}


def test_phases_are_what_is_between_events_and_add_up(papers: dict[str, ModuleType]) -> None:
    unattended = papers["jorge_im"]
    story = unattended.Story(
        [
            event(20, "one", "STAGING"),
            event(50, "one", "RUNNING"),
            event(80, "one", "SAVING"),
            event(82, "one", "DONE"),
            event(83, "two", "RUNNING"),
            event(95, "two", "SAVING"),
            event(97, "two", "DONE"),
        ],
        {
            "one": [{"begins": 0, "at": 59}, {"step": 1, "seconds": 2, "at": 60}],
            "two": [{"step": 1, "seconds": 2, "at": 90}],
        },
    )
    seen = {"staging": 40.0, "destroyed": 100.0}
    phases = unattended.phases_of(story, seen, 30.0, ["one", "two"], began=1.0)
    assert phases["deployment through IM"] == 19
    assert phases["HDFS start"] == phases["staging from S3 into HDFS"] == 10
    assert phases["one: training"] == 20
    assert phases["destroying"] == 3
    assert sum(phases.values()) == 99


@pytest.mark.parametrize(("steps", "between"), [(60, 6), (300, 30), (16_320, 100)])
def test_a_training_reports_often_however_long_it_is(
    papers: dict[str, ModuleType], steps: int, between: int
) -> None:
    around = SimpleNamespace(mirror="http://mirror", bucket="bucket")
    assert f"--round {between}\n" in papers["jorge_im"].recipe(around, {"asynchronous": steps})


def test_a_step_that_fails_answers_its_claims_with_the_reason(
    papers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        'CLAIMS = {"it works": "always"}\nif __name__ == "__main__": raise SystemExit("no disk is left")\n'
    )
    (tmp_path / "broken.py").write_text(script)
    seeds = papers["seeds"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(seeds, "FOLDER", tmp_path)
    monkeypatch.setattr(seeds, "OUT", tmp_path)
    found = seeds.run(seeds.Step("fc2", "broken", 60), quick=False)
    (claim,) = found["claims"]
    assert (claim["text"], claim["paper"], claim["holds"]) == ("it works", "always", False)
    assert claim["reason"] == "broken.py failed with 1, its last words: no disk is left"
    assert not seeds.is_measured(found)
    assert "| it works | always |      | **NO** |" in seeds.told({"broken": found})


def test_steps_are_measured_one_by_one_and_what_is_known_of_the_code_is_left_out(
    papers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, ran = papers["seeds"], list[str]()
    written: list[bool] = []

    def run(step: object, quick: bool) -> dict[str, object]:
        script = str(vars(step)["script"])
        if script in ran:
            raise seeds.Ended
        ran.append(script)
        claim = {"text": script, "paper": "", "here": "", "holds": True, "reason": ""}
        known = {"date": "2026-11-25", "commit": "abc", "load": [1.0, 2.0], "claims": [claim]}
        failure = "it failed" if script == "fc2" else ""
        return {**known, "paper": vars(step)["paper"], "seconds": 1, "failure": failure}

    steps = tuple(seeds.Step("fc2", name, 60, is_apart=name == "long") for name in ("phone", "fc2", "long"))
    monkeypatch.setattr(seeds, "STEPS", steps)
    monkeypatch.setattr(seeds, "OUT", tmp_path)
    monkeypatch.setattr(seeds, "run", run)
    monkeypatch.setattr(seeds, "is_code_of", lambda commit: commit == "abc")
    monkeypatch.setattr(seeds.results, "main", lambda: written.append(True))
    assert seeds.main(["--only", "phone.py", "--resume"]) == 0
    assert seeds.main(["--only", "fc2", "--resume"]) == 0
    assert ran == ["phone", "fc2"]  # the paper's, but for what takes long
    assert seeds.main(["--only", "long.py"]) == 0
    assert written == [True, True]  # not before all were known
    ran.remove("fc2")
    assert seeds.main(["--resume"]) == 0  # it had failed
    assert ran == ["phone", "long", "fc2"]
    assert seeds.main([]) == 1  # ended meanwhile: what was known is known
    assert "| `phone.py` | 1 | 1 of 1 | 2026-11-25 | abc    | 1 to 2 |" in (tmp_path / "seeds.md").read_text()


def test_the_rate_falls_when_credits_are_used_up(papers: dict[str, ModuleType]) -> None:
    decay = papers["jorge"].Decay([20.0] * 3 + [40.0] * 12 + [9.0] * 5, {1: 20.0, 19: 0.1})
    assert decay.ends == (40.0, 9.0)
    assert decay.seen().holds
    assert decay.seen().here == "from 40.0 to 9.0 batches/s, with 0.1 credits left of 30"
    assert not papers["jorge"].Decay([40.0] * 20, {1: 20.0, 19: 0.1}).seen().holds
    assert not papers["jorge"].Decay([40.0] * 12 + [9.0] * 5, {1: 20.0}).seen().holds


def test_nothing_that_a_step_has_started_stays(
    papers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, pathlib, subprocess\n"
        'CLAIMS = {"it works": "always"}\n'
        'if __name__ == "__main__":\n'
        '    left = subprocess.Popen(["sleep", "600"], start_new_session=True)\n'
        f"    said = pathlib.Path({str(tmp_path / 'left')!r})\n"
        "    said.write_text(f\"{left.pid} {os.environ['TMPDIR']}\")\n"
    )
    (tmp_path / "leaving.py").write_text(script)
    seeds = papers["seeds"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(seeds, "FOLDER", tmp_path)
    monkeypatch.setattr(seeds, "OUT", tmp_path)
    seeds.run(seeds.Step("fc2", "leaving", 60), quick=False)
    pid, place = (tmp_path / "left").read_text().split()
    assert not Path(place).exists()
    status = Path("/proc", pid, "status")
    assert not status.exists() or "zombie" in status.read_text()


def test_what_was_found_comes_into_the_page_and_the_rest_stays(
    papers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = papers["results"]
    page = tmp_path / "RESULTS.md"
    page.write_text((PAPERS / "RESULTS.md").read_text())
    (tmp_path / "seeds.json").write_text('{"quick": false, "steps": {"anwar": {}, "fc2": {}}}')
    (tmp_path / "seeds.md").write_text("each claim\n")
    (tmp_path / "papers_anwar.json").write_text("{}")
    (tmp_path / "papers_anwar.md").write_text(f"a table\n\n{results.ANSWERS}\n\nthe claims again\n")
    monkeypatch.setattr(results, "OUT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", page)
    results.main()
    text = page.read_text()
    assert "<!-- seeds -->\n\neach claim\n\n<!-- /seeds -->" in text
    assert "<!-- anwar -->\n\na table\n\n<!-- /anwar -->" in text
    assert "<!-- fc2 -->\n\na table" not in text
    assert (
        text.rpartition("<!-- /accuracy -->")[2]
        == (PAPERS / "RESULTS.md").read_text().rpartition("<!-- /accuracy -->")[2]
    )


def test_what_is_marked_on_a_page_is_done_and_compared_by_its_words(papers):
    pages = papers["pages"]
    page = """<!-- file: a.py -->
```python
print(1)
```

```console
$ not marked
```

<!-- run -->
```console
$ one --with \\
    two
digits-7f3a: 12 of 30 tasks in /home/me
$ three
```
"""
    file, one, three = pages.steps_of(page)
    assert (file.file, file.text) == ("a.py", "print(1)\n")
    assert one.shown == ("digits-7f3a: 12 of 30 tasks in /home/me",)
    assert three.text == "three"
    assert not pages.missing(one.shown, "x\nabc-99ff11: 3 of 4 tasks in /tmp/x\n")
    assert pages.missing(one.shown, "3 jobs") == list(one.shown)
