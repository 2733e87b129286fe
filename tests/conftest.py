"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

# How long an example takes depends on what else the machine does: a timed test would fail for no reason.
# More examples than every run can afford: `TRAINMASTER_EXAMPLES=1000 make test`, over night.
settings.register_profile(
    "trainmaster", deadline=None, max_examples=int(os.environ.get("TRAINMASTER_EXAMPLES", "100"))
)
settings.load_profile("trainmaster")

#: Half of what a process may open where nobody has allowed it more.
MANY_DESCRIPTORS = 512

# Before anything imports them.
pytest.register_assert_rewrite(
    "trainmaster.testing", "administration_contract", "client_contract", "client_contract_home",
    "client_contract_recipes", "client_contract_storage",
)  # fmt: skip

from trainmaster.testing.private_postgres import NOT_DURABLE, NoPostgresError, PrivatePostgres  # noqa: E402


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What only `make crossings` or `make places` has is left out unless `-m` names it, also in a file."""
    unnamed = [name for name in ("crossings", "places") if name not in config.option.markexpr]
    left_out = [item for item in items if any(map(item.get_closest_marker, unnamed))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
    if asked := os.environ.get("TRAINMASTER_EXAMPLES"):
        fewer_examples(items, 2 * int(asked))


def fewer_examples(items: list[pytest.Item], most: int) -> None:
    """Also properties that name a number have at most so many: each run draws others."""
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)  # of a method, whose settings are the function's
        if is_hypothesis_test(test):
            own = test._hypothesis_internal_use_settings
            test._hypothesis_internal_use_settings = settings(own, max_examples=min(own.max_examples, most))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: what looks for garbage leaves them out."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_runtest_logfinish() -> None:
    """What holds descriptors is not left to a collector that seldom runs."""
    if len(os.listdir("/proc/self/fd")) > MANY_DESCRIPTORS:  # noqa: PTH208 - after each test
        gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was run once more: that it passes then does not say what the first try found."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session", autouse=True)
def no_contexts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server that the developer uses from this machine is not what tests speak to; other settings stay."""
    theirs = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    ours = tmp_path_factory.mktemp("config")
    for each in theirs.iterdir() if theirs.is_dir() else ():
        if each.name != "trainmaster":
            (ours / each.name).symlink_to(each)
    os.environ["XDG_CONFIG_HOME"] = str(ours)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """One PostgreSQL server of our own; ask it for a `new_url`."""
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    try:
        server = PrivatePostgres(NOT_DURABLE)
    except NoPostgresError as error:
        pytest.skip(str(error))
    with server:
        yield server
