"""What a server refuses to run for others."""

from __future__ import annotations

import pytest

from trainmaster.service.submissions import RunRequest, refusals
from trainmaster.service.team_runs import thinned
from trainmaster.spec import Recipe

STORE = "s3://ours/store"


def refused(is_shared=True, **keys):
    top = {key: keys.pop(key) for key in ("provider", "code", "notify") if key in keys}
    recipe = Recipe.from_dict(
        {"name": "a", "provider": "aws", **top, "experiments": {"main": {"command": "true", **keys}}}
    )
    return list(refusals(recipe, is_shared=is_shared, store_url=STORE))


@pytest.mark.parametrize(
    "keys",
    [
        {"provider": "local"},
        {"code": "/etc"},
        {"code": "../other"},
        {"code": "~/x"},
        {"code": "ssh://git@host/repository.git"},
        {"code": "file:///srv/repository.git"},
        {"notify": [{"to": "rm -rf /"}]},
        {"secrets": ["AWS_SECRET_ACCESS_KEY"]},
        {"data": {"d": {"dir": "/etc"}}},
        {"data": {"d": {"dir": "a/../../b"}}},
        {"data": {"d": {"url": "file:///etc/passwd"}}},
        {"data": {"d": {"url": "http://169.254.169.254/latest"}}},
        {"data": {"d": {"url": f"{STORE}/models/other-run"}}},
    ],
    ids=str,
)
def test_others_get_nothing_of_the_server(keys):
    assert len(refused(**keys)) == 1
    assert refused(is_shared=False, **keys) == []


def test_others_may_have_machines_data_and_their_own_code():
    assert refused(code="https://example.org/r.git@v1") == []
    assert refused(data={"d": {"url": "s3://public/digits"}, "e": {"dir": "data"}}) == []


def test_a_request_is_the_same_if_all_of_it_is():
    one = RunRequest("a: 1", "0" * 64)
    assert one.digest() == RunRequest("a: 1", "0" * 64).digest()
    others = [
        RunRequest("a: 1"),
        RunRequest("a: 1", "0" * 64, "lab"),
        RunRequest("a: 1", "0" * 64, None, 5.0),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 4


def test_thinning_keeps_the_ends_and_the_extremes():
    values = [float((index * 7919) % 1009) for index in range(10_000)]
    for most in (2, 4, 50, 499):
        kept = thinned(values, most)
        assert len(kept) <= most
        assert kept == sorted(set(kept))
        assert {0, 9_999} <= set(kept)
    kept = [values[index] for index in thinned(values, 50)]
    assert (min(kept), max(kept)) == (min(values), max(values))
