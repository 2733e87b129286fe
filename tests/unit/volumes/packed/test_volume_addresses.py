"""How users write where a volume is."""

import pytest

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import UsageError
from trainmaster.volumes.packed.addresses import volume_address


@pytest.mark.parametrize(
    ("text", "url", "version"),
    [
        ("s3://bucket/cats", "s3://bucket/cats", None),
        ("s3://bucket/cats///", "s3://bucket/cats", None),
        ("s3://bucket/cats@3/", "s3://bucket/cats", 3),
        ("s3://bucket/a b@v3", "s3://bucket/a b", 3),
        ("./cats@3//", "./cats", 3),
        ("/", "/", None),
        ("cats/", "file:///store/volumes/cats", None),
        ("team/cats@12", "file:///store/volumes/team/cats", 12),
    ],
)
def test_slashes_at_the_end_mean_nothing(text, url, version, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_STORE", "file:///store")
    assert volume_address(text) == (url, version)


@pytest.mark.parametrize("text", ["s3://", "s3:///", "s3:///cats", "gs://@3", "hdfs://"])
def test_a_url_without_a_bucket_is_no_directory(text):
    with pytest.raises(UsageError, match="no bucket"):
        ObjectStore(volume_address(text).url)
