"""What a host is sent, decided from what it says of itself."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cluster.bootstrap.facts import HostFacts, PythonFacts, parse_facts, probe_script
from trainmaster.cluster.bootstrap.plan import BootstrapPlan, UnfitHost, make_plan, needs_internet
from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage

FITS = PythonFacts("/usr/bin/python3.11", "3.11.2", "cpython", "cpython-311-x86_64-linux-gnu")
NEWER = PythonFacts("/usr/bin/python3.13", "3.13.1", "cpython", "cpython-313-x86_64-linux-gnu")
OLD = PythonFacts("/usr/bin/python3", "3.9.2", "cpython", "cpython-39-x86_64-linux-gnu")
MUSL = PythonFacts("/usr/bin/python3", "3.11.9", "cpython", "cpython-311-x86_64-linux-musl")
KIT = RuntimePackage(
    minor=(3, 11),
    soabi=FITS.soabi,
    packages=RuntimeLayer("packages", "p1", (), 100 << 20),
    source=RuntimeLayer("runtimes", "s1", (), 2 << 20),
    pins=("a==1", "b==2"),
    imports=(),
)
CODE = RuntimeLayer("code", "c1", (), 1 << 20)
FACTS = HostFacts(
    home="/home/a",
    user="a",
    root="/home/a/.trainmaster-runtime",
    os="Debian",
    kernel="6.1",
    arch="x86_64",
    cpus=4,
    memory_bytes=8 << 30,
    disk_bytes=10 << 30,
    writable=True,
    gpus=(),
    pythons=(FITS,),
    have=frozenset(),
    clock_skew_s=0.0,
)


def plan(**changes: object) -> BootstrapPlan:
    made = make_plan(replace(FACTS, **changes), KIT, CODE)  # type: ignore[arg-type]
    assert isinstance(made, BootstrapPlan), made
    return made


def unfit(**changes: object) -> UnfitHost:
    made = make_plan(replace(FACTS, **changes), KIT, CODE)  # type: ignore[arg-type]
    assert isinstance(made, UnfitHost), made
    assert made.hint
    return made


def test_all_is_sent_to_a_fresh_host_and_nothing_to_one_that_has_it() -> None:
    fresh = plan()
    assert [step.present for step in (fresh.packages, fresh.runtime, fresh.code) if step] == [False] * 3
    runtime = f"runtimes/{fresh.runtime.order['name']}"
    assert fresh.python == f"/home/a/.trainmaster-runtime/{runtime}/bin/python"
    ready = plan(have=frozenset({"packages/p1", runtime, "code/c1"}), disk_bytes=0)
    assert [step.present for step in (ready.packages, ready.runtime, ready.code) if step] == [True] * 3


def test_only_libraries_are_looked_for_where_they_are_here(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").touch()
    other = tmp_path / "other"
    files = (
        ("a/b.py", tmp_path / "a" / "b.py"),
        ("c/d.py", other / "c" / "d.py"),
        ("e.py", tmp_path / "e.py"),
    )
    package = replace(KIT, packages=RuntimeLayer("packages", "p1", files, 1))
    tops = {"a": str(tmp_path / "a"), "c": str(other / "c"), "e.py": str(tmp_path / "e.py")}
    assert package.packages.tops() == tops
    scattered = (*files, ("a/z.py", other / "a" / "z.py"))
    assert RuntimeLayer("packages", "p2", scattered, 1).tops() == {}
    renamed = (("x.py", tmp_path / "e.py"),)
    assert RuntimeLayer("packages", "p3", renamed, 1).tops() == {}
    for shared in (True, False):
        made = make_plan(replace(FACTS, shared=shared), package, CODE)
        assert isinstance(made, BootstrapPlan)
        assert made.packages.order.get("tops", {}) == (tops if shared else {})
        assert "tops" not in made.runtime.order
    by_pip = make_plan(replace(FACTS, shared=True, pythons=(NEWER,), internet=True), package, CODE)
    assert isinstance(by_pip, BootstrapPlan)
    assert "tops" not in by_pip.packages.order


def test_the_venv_finds_the_libraries_wherever_it_lies() -> None:
    made = plan()
    order = made.runtime.order
    (text,) = [text for name, text in order["files"].items() if name.endswith(".pth")]
    line, more = text.splitlines()
    assert more.startswith("import gc;"), "every Python of the runtime runs it"
    site = Path(FACTS.root, "runtimes", order["name"], order["inside"])
    found = Path(*(site / line.strip()).parts)
    assert Path(*_normal(found)) == Path(FACTS.root, "packages", "p1", "site-packages")
    assert order["files"]["pyvenv.cfg"].startswith("home = /usr/bin\n")
    assert order["links"]["bin/python"] == FITS.path


def _normal(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return parts


def test_another_interpreter_is_another_runtime() -> None:
    elsewhere = replace(FITS, path="/opt/python3.11")
    assert plan().runtime.order["name"] != plan(pythons=(elsewhere,)).runtime.order["name"]


def test_the_fitting_python_is_chosen_wherever_it_stands_in_the_list() -> None:
    assert plan(pythons=(OLD, NEWER, MUSL, FITS)).host_python == FITS
    assert not needs_internet(replace(FACTS, pythons=(NEWER, FITS)), KIT)


def test_with_another_python_the_libraries_come_by_pip_if_there_is_internet() -> None:
    assert needs_internet(replace(FACTS, pythons=(OLD, NEWER)), KIT)
    made = plan(pythons=(OLD, NEWER), internet=True)
    assert made.host_python == NEWER
    assert made.packages.layer is None
    assert made.packages.order["pip"] == ["a==1", "b==2"]
    assert made.runtime.layer == KIT.source, "Trainmaster itself is sent in any case"
    assert "python3.13" in made.runtime.order["inside"]
    for other in (NEWER, MUSL):
        assert "reaches no package index" in unfit(pythons=(other,), internet=False).reason


@pytest.mark.parametrize(
    ("pythons", "said"),
    [((), "it has no Python; Python 3.11 is needed"), ((OLD,), "it has only cpython 3.9.2;")],
)
def test_without_a_python_there_is_nothing_to_do(pythons: tuple[PythonFacts, ...], said: str) -> None:
    refused = unfit(pythons=pythons)
    assert said in refused.reason
    assert "python3.11" in refused.hint
    assert not needs_internet(replace(FACTS, pythons=pythons), KIT)


def test_room_is_needed_for_what_is_missing_only() -> None:
    assert "409 MB are needed" in unfit(disk_bytes=300 << 20).reason
    assert plan(disk_bytes=300 << 20, have=frozenset({"packages/p1"}))
    assert "cannot write to" in unfit(writable=False).reason


def test_gpus_and_clocks_are_noted() -> None:
    assert plan().device == "cpu"
    assert plan(gpus=("GPU 0: V100",)).device == "gpu"
    assert plan(clock_skew_s=-40.0).notes == ("its clock is 40 s behind ours; use NTP",)
    assert plan(clock_skew_s=2.0).notes == ()


def test_this_machine_says_what_it_is(tmp_path: Path) -> None:
    """The script itself, with a shell; a start-up file that chatters does no harm."""
    (tmp_path / "packages" / "1a2b").mkdir(parents=True)
    (tmp_path / "packages" / "1a2b" / "complete").touch()
    (tmp_path / "packages" / "half").mkdir()
    asked = time.time()
    done = subprocess.run(
        ["sh", "-s"], input=probe_script(str(tmp_path)), capture_output=True, text=True, check=True
    )
    facts = parse_facts("Welcome!\nhome /nowhere\n" + done.stdout, asked, time.time())
    assert facts is not None
    assert facts.root == str(tmp_path)
    assert facts.home != "/nowhere"
    assert facts.have == {"packages/1a2b"}
    assert facts.cpus >= 1
    assert facts.memory_bytes > 0
    assert facts.disk_bytes > 0
    assert facts.writable
    assert facts.clock_skew_s == 0.0


def test_a_python_is_asked_by_the_name_it_was_given(tmp_path: Path) -> None:
    link = tmp_path / "my python"
    link.symlink_to(sys.executable)
    script = probe_script("~/x y", str(link))
    done = subprocess.run(
        ["sh", "-s"],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    facts = parse_facts(done.stdout, 0.0, time.time())
    assert facts is not None
    assert facts.root == str(tmp_path / "x y")
    assert [python.soabi for python in facts.pythons] == [sysconfig.get_config_var("SOABI")]


@given(st.text(max_size=200))
def test_no_answer_is_none(said: str) -> None:
    assert parse_facts(said, 0.0, 1.0) is None


@given(
    st.lists(
        st.sampled_from(
            ["clock x", "cpus", "python 3", "python a.b c d e", "gpu", "have", "disk_kb -", "MemTotal: ?", ""]
        )
    )
)
def test_half_an_answer_is_no_crash(lines: list[str]) -> None:
    facts = parse_facts("\n".join(["@@trainmaster-facts 1", "home /h", "arch x", *lines]) + "\n", 0.0, 1.0)
    assert facts is not None
    assert facts.cpus == 0


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999", "many"])
def test_a_host_that_says_no_number_is_known_all_the_same(number: str) -> None:
    told = "".join(f"{name} {number}\n" for name in ("cpus", "MemTotal:", "disk_kb", "clock"))
    facts = parse_facts(f"@@trainmaster-facts 1\nhome /h\narch x\n{told}", 0.0, 1.0)
    assert facts is not None
    assert (facts.cpus, facts.memory_bytes, facts.disk_bytes, facts.clock_skew_s) == (0, 0, 0, 0.0)
