"""What bytes that others wrote may be: pieces flipped, cut off or put in, values of any type in JSON."""

import json
import struct

from hypothesis import strategies as st

NAMES = ["", ".", "..", "../../x", "/etc/x", "a/../../x", "a\0b", "\ud800", "x" * 300, "-rf", "\x1b]0;x\x07"]
NUMBERS = [-1, 0, 1, 2**31, 2**32, 2**40, 2**63, -(2**63), 2**64, 10**400, 1e308, -0.0]
NUMBERS += [float("nan"), float("inf"), float("-inf"), 5e-324, True]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
LEAVES |= st.sampled_from(NAMES) | st.sampled_from(NUMBERS)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
#: Texts that a reader of JSON must survive, whatever it wants in them.
TEXTS = [b"", b"{", b"[]", b"{}", b"null", b"0", b'""', b"[" * 100_000, b'{"a":' * 50_000, b"9" * 6_000]
TEXTS += [b"\xff\xfe", b"\xef\xbb\xbf{}", b"NaN", b"[null]", b'{"a":1,"a":[]}', b'"\\ud800"', b"\0" * 64]


def _places(document, before=()):
    """The way to every value in a document."""
    yield before
    inner = document.items() if isinstance(document, dict) else ()
    inner = enumerate(document) if isinstance(document, list) else inner
    for key, value in inner:
        yield from _places(value, (*before, key))


def _with(document, place, value):
    if not place:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[place[0]] = _with(document[place[0]], place[1:], value)
    return changed


def _without(document, place):
    changed = dict(document) if isinstance(document, dict) else list(document)
    if len(place) == 1:
        del changed[place[0]]
    else:
        changed[place[0]] = _without(document[place[0]], place[1:])
    return changed


@st.composite
def changed_documents(draw, document):
    """A document in which values anywhere are others, of any type, gone, or more than there were."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(_places(document))))
        what = draw(st.sampled_from(["value", "value", "gone", "more"]))
        if what == "gone" and place:
            document = _without(document, place)
        elif what == "more" and isinstance(inner := _at(document, place), dict):
            document = _with(document, place, {**inner, draw(st.text(max_size=5)): draw(JSON)})
        elif what == "more" and isinstance(inner, list):
            document = _with(document, place, [*inner, *inner, draw(JSON)])
        else:
            document = _with(document, place, draw(JSON))
    return document


def _at(document, place):
    for key in place:
        document = document[key]
    return document


def changed_json(document):
    """Bytes that once were a document in JSON."""
    good = json.dumps(document).encode()
    documents = changed_documents(document).map(lambda value: json.dumps(value).encode())
    return documents | changed_bytes(good) | st.sampled_from(TEXTS)


@st.composite
def changed_bytes(draw, data):
    """Bytes with some flipped, a piece cut out or put in, the end gone, or a number out of all measure."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        what = draw(st.sampled_from(["flip", "flip", "cut", "end", "put", "number", "again"]))
        if what == "flip" and changed:
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del changed[at : at + draw(st.integers(1, 64))]
        elif what == "end":
            del changed[at:]
        elif what == "put":
            changed[at:at] = draw(st.binary(max_size=16))
        elif what == "number":
            code, bits = draw(st.sampled_from([("<I", 32), ("<Q", 64), (">I", 32), ("<H", 16)]))
            value = draw(st.sampled_from([0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1]))
            changed[at : at + bits // 8] = struct.pack(code, value)
        elif what == "again":
            changed += changed[at:]
    return bytes(changed)
