"""`SecretMask`: whatever the pieces are that output comes in, no value of a secret gets through."""

import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.executors.telemetry.logfile import LogFile
from trainmaster.executors.telemetry.masking import MASK, SecretMask

TEXTS = st.lists(
    st.sampled_from([b"a", b"\n", b"hunter2", b"hunt", b"er2", b"s3cret-key", b"s3cret", b"\xff"])
)


def masked(mask, data, cuts):
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    parts = [mask.feed(data[a:b]) for a, b in pairwise(places)]
    return b"".join(parts) + mask.rest()


@given(TEXTS.map(b"".join), st.lists(st.integers(0, 10**6)))
def test_pieces_make_no_difference(data, cuts):
    expected = data.replace(b"s3cret-key", MASK).replace(b"hunter2", MASK)
    assert masked(SecretMask(["s3cret-key", "hunter2"]), data, cuts) == expected


@given(
    st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=3),
    st.text("abc", max_size=60),
    st.lists(st.integers(0, 10**6)),
)
def test_no_value_gets_through_however_they_overlap(secrets, text, cuts):
    shown = masked(SecretMask(secrets), text.encode(), cuts)
    assert not any(secret.encode() in shown for secret in secrets)


def test_of_values_that_begin_alike_the_longest_is_taken():
    mask = SecretMask(["abcdef", "abcdefgh"])
    assert mask.feed(b"1 abcdef") == b"1 "
    assert mask.feed(b"gh 2 abcdef.") == b"*** 2 ***."


def test_lines_of_a_key_file_are_values():
    mask = SecretMask(["-----BEGIN KEY-----\r\nMIIEpAIBAAKC\nQ==\n"])
    assert mask.feed(b"key: MIIEpAIBAAKC Q==\n") == b"key: *** Q==\n"


@pytest.mark.parametrize("values", [[], ["short"], ["", " \n "]])
def test_without_a_value_worth_looking_for_there_is_no_mask(values):
    assert not SecretMask(values)


def test_a_log_has_none_of_it_also_at_its_end(tmp_path):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    log = LogFile(str(tmp_path / "worker-0.log"), 10, SecretMask(["hunter22"]))
    for piece in (b"it is hun", b"ter22, hunter22 and hunt"):
        os.write(writing, piece)
        assert log.take(reading, 1 << 20) == len(piece)
    log.close()
    os.close(reading)
    os.close(writing)
    assert b"".join((tmp_path / f"worker-0.log{end}").read_bytes() for end in ("", ".1", ".2")) == (
        b"it is ***, *** and hunt"
    )
    assert log.size == len(b"it is ***, *** and hunt")
