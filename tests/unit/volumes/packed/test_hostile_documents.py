"""Small documents of a volume that may come from anybody: a value, or an error that says so; nothing else."""

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.objects.object_store import ObjectDetail
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.deletions import _list_of
from trainmaster.volumes.packed.head import Head, StoredTable, is_fence

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
TABLE = StoredTable("0" * 64, 1, 1)
HEAD = json.loads(
    Head(
        version=1, created_at=datetime.now(UTC), kind="packed", order="path", chunk_limit_bytes=10,
        file_count=1, row_count=2, total_bytes=3, chunk_count=4, files=TABLE, chunks=TABLE,
        generations=((1, 2, 1),),
    ).to_json()
)  # fmt: skip
LIST = {"format": 1, "newest": 3, "names": ["chunks/00/11", "manifests/0.parquet"]}


def changed(document):
    """A document with some of its values, or parts of them, replaced, and as many bytes as one likes."""
    some = st.dictionaries(st.sampled_from(sorted(document)), JSON, max_size=3)
    whole = some.map(lambda changes: json.dumps(document | changes).encode())
    return whole | JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)


@given(data=changed(HEAD))
def test_heads(data):
    assert is_fence(data) in (True, False)
    try:
        head = Head.from_json(data, "s3://bucket/head")
    except PublishError:
        return
    assert all(head.generation(chunk) >= 0 for chunk in range(5))
    assert Head.from_json(head.to_json(), "").tables == head.tables


@given(data=changed(LIST))
def test_lists_of_deletions(data):
    detail = ObjectDetail("collections/000001.deletions", len(data), "", 1.0)
    try:
        found = _list_of(data, detail, "s3://bucket/list")
    except PublishError:
        return
    assert all(name.startswith(("chunks/", "manifests/")) for name in found.names)
