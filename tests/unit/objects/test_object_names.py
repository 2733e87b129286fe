import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainmaster.objects.names import link_stays_inside, object_key, stays_inside

component = st.binary(min_size=1, max_size=255).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
paths = st.lists(component, min_size=1, max_size=5).map(lambda parts: os.fsdecode(b"/".join(parts)))


@given(paths)
@example("ü" * 127)
@example("/".join(["d" * 255] * 15))
def test_a_key_is_one_that_every_store_takes(path):
    key = object_key(path)
    assert set(key) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+@,%=/")
    assert len(key) <= 700
    assert all(len(part) <= 200 and part not in ("", ".", "..") for part in key.split("/"))


@given(paths, paths)
@example("a b", "a%20b")
@example("=" + "0" * 64, "x" * 300)
def test_two_paths_never_share_a_key(first, second):
    assert (object_key(first) == object_key(second)) == (first == second)


def test_a_key_of_a_long_name_stays_below_its_folder():
    assert object_key("weights/" + "é" * 120).startswith("weights/=")


@given(paths)
def test_real_paths_stay_inside(path):
    assert stays_inside(path)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/..", "a/../../b", "./a", "a//b", "a/", "a\0b"])
def test_what_may_leave_a_directory_is_told(path):
    assert not stays_inside(path)


@pytest.mark.parametrize(
    ("links", "inside"),
    [
        ({"a": "b"}, True),
        ({"a": "dangling/x/../y"}, True),
        ({"a/b": "../c"}, True),
        ({"a": "a"}, True),
        ({"a": "b", "b": "a"}, True),
        ({"a": ".."}, False),
        ({"a": "/etc"}, False),
        ({"a/b": "../../c"}, False),
        ({"a": ""}, False),
        ({"a": "x\0y"}, False),
        # By its text each stays inside; by following, the first does not.
        ({"a": "d/up/..", "d/up": ".."}, False),
        ({"a": "b/../..", "b": "d/e"}, True),
        ({"a": "b/../../..", "b": "d/e"}, False),
    ],
)
def test_links_are_followed_as_the_kernel_does(links, inside):
    assert link_stays_inside("a" if "a" in links else "a/b", links) == inside
