import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.executors.wire import Splitter, WireError, encode

texts = st.text(st.characters())  # lone surrogates too: that is how bytes of other encodings travel
messages = st.dictionaries(texts, st.one_of(texts, st.integers(), st.none(), st.lists(texts)))


@given(st.lists(messages), st.integers(1, 40))
def test_any_pieces(sent, size):
    data = b"".join(encode(message) for message in sent)
    splitter = Splitter()
    received = []
    for start in range(0, len(data), size):
        received += splitter.feed(data[start : start + size])
    assert received == sent


@pytest.mark.parametrize("data", [b"hello\n", b"[1]\n", b"\xff\n", b"{\n", b"\n"])
def test_not_ours(data):
    with pytest.raises(WireError):
        Splitter().feed(data)


def test_endless():
    splitter = Splitter(100)
    splitter.feed(b"x" * 100)
    with pytest.raises(WireError, match="longer"):
        splitter.feed(b"x")


def test_nested_without_end():
    with pytest.raises(WireError):
        Splitter().feed(b"[" * 100_000 + b"\n")


@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"{}\n", b'{"a": [', b"]}\n", b"\n", b"null\n"]), max_size=8
    )
)
def test_any_bytes(sent):
    splitter = Splitter()
    with contextlib.suppress(WireError):
        for data in sent:
            assert all(isinstance(message, dict) for message in splitter.feed(data))
