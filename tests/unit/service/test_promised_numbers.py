"""The docs are the contract: the numbers that they name are those of the code."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.db.ledger import WARN_AT
from trainmaster.service import retention
from trainmaster.service.notifications.webhook_targets import TIMEOUT_S, check_url
from trainmaster.service.retention import CHANGEABLE, DAY_S, FOR_EVER, KEPT, SWEEP_EVERY_S
from trainmaster.service.teams.admission import PRIORITIES
from trainmaster.service.uploads import upload_finishing, uploads
from trainmaster.service.users import access, accounts
from trainmaster.service.workflows import decisions, triggers
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import parse_bytes

DOCS = Path(__file__).resolve().parents[3] / "docs"
WORDS = {2: "two", 5: "five", 7: "seven", 8: "eight", 10: "ten"}


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("server/security", f"scopes and an end ({access.TOKEN_S / DAY_S:g} days)"),
        ("server/security", f"end after {access.SESSION_S / 3600:g} hours"),
        ("server/security", f"{WORDS[access.ATTEMPTS].title()} wrong attempts to log in from one address"),
        ("server/security", f"close it for {WORDS[access.ATTEMPTS_S / 60]} minutes"),
        ("server/teams", f"once, within {WORDS[accounts.INVITE_S / DAY_S]} days"),
        ("server/notifications", f"Only 2xx within {TIMEOUT_S:g} seconds"),
        ("server/budgets", "At {}, {} and {} % of the month's money".format(*WARN_AT)),
        ("server/uploads", f"{parse_bytes(uploads._QUOTA) / 10**9:g} GB of unfinished uploads"),
        ("server/uploads", "What is unused for a day" if uploads.UNUSED_S == DAY_S else "wrong"),
        ("server/kept", "is removed by it, each hour" if SWEEP_EVERY_S == 3600 else "wrong"),
        ("server/uploads", "which needs twice its size"),
        ("workflows", f"a chain of {WORDS[decisions.LONGEST_CHAIN]} others"),
        ("workflows", f"again after {triggers._RETRY_S:g} s, {2 * triggers._RETRY_S:g} s, and so on"),
    ],
)
def test_numbers(page, sentence):
    assert sentence in (DOCS / f"{page}.md").read_text()


def test_how_long_what_is_kept():
    assert DAY_S == 24 * 3600
    text = (DOCS / "server/kept.md").read_text()
    for each in KEPT:
        days = each.seconds / DAY_S
        kept = f"{days:g} day{'' if days == 1 else 's'}" if days else "at once"
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{each.kind}` |")]
        assert row.endswith(f"| {kept} |"), each
    assert {each.kind for each in (*KEPT, *FOR_EVER)} > set(CHANGEABLE)


class Wake:
    """Ends a loop as soon as it waits."""

    def __init__(self, loop):
        self.loop, self.waited = loop, []

    def clear(self):
        pass

    def wait(self, seconds):
        self.waited.append(seconds)
        self.loop._over.set()


def test_what_nobody_uses_is_looked_for_each_ten_minutes(monkeypatch):
    database, looks = SimpleNamespace(clock_s=lambda: 5.0), []
    found = uploads.Uploads(SimpleNamespace(store_url="file:///none"), database, {})
    monkeypatch.setattr(found, "_wake", Wake(found))
    monkeypatch.setattr(found, "collect", looks.append)
    found._watch()
    assert (looks, found._wake.waited) == ([5.0], [600.0])


def test_what_is_old_is_looked_for_each_hour(monkeypatch, caplog):
    found = retention.Retention(None, None, {})
    monkeypatch.setattr(found, "_wake", Wake(found))
    monkeypatch.setattr(found, "sweep", lambda: {"audit": 3})
    with caplog.at_level("INFO"):
        found._watch()
    assert found._wake.waited == [3600.0]
    assert "removed what is old: {'audit': 3}" in caplog.text


def test_two_things_are_made_of_uploads_at_once_and_none_any_more_when_it_is_stopped():
    found, release = upload_finishing.UploadFinishing(None, None, None, {}), threading.Event()
    made = [found._pool.submit(release.wait) for _ in range(3)]
    found.stop()
    assert [each.cancelled() for each in made] == [False, False, True]
    release.set()
    with pytest.raises(RuntimeError, match="after shutdown"):
        found._pool.submit(release.wait)


def test_what_a_high_priority_is():
    assert PRIORITIES["low"] < PRIORITIES["normal"] < PRIORITIES["high"]


def test_a_claim_outlives_the_times_at_which_it_is_renewed():
    from trainmaster.db.uploads import CLAIM_S

    assert upload_finishing._RENEW_S < CLAIM_S / 3 < 60
    assert triggers.LOOK_S < 5 < triggers.CLAIM_S <= 60 <= triggers._LONGEST_RETRY_S <= 600


@pytest.mark.parametrize(
    "refuse",
    [
        lambda text: access.check_name(text, "team"),
        lambda text: check_url(f"https://{text} ", ()),
        lambda text: uploads.check_name(f"../{text}"),
    ],
)
def test_what_strangers_send_is_told_back_short(refuse):
    with pytest.raises(UsageError) as refused:
        refuse("x" * 5000)
    assert len(str(refused.value)) < 400
