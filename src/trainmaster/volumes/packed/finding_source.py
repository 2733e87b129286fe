# ruff: noqa: PTH100, PTH111, PTH112, PTH113
# Names are any bytes: os functions on plain text are exact.
"""What a user means by the source of a volume."""

import os

from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.urls import split_url
from trainmaster.spec.errors import UsageError
from trainmaster.volumes.packed.directory_source import DirectorySource
from trainmaster.volumes.packed.object_source import ObjectSource, single_object
from trainmaster.volumes.packed.sources import PushSource
from trainmaster.volumes.packed.tar_source import TarSource
from trainmaster.volumes.packed.tar_stream import TarStream


def source_of(text: str) -> PushSource:
    """Finds out what a user means by a source.

    Args:
        text: a directory, a tar, the http://, https:// or file:// URL of one, or the URL of a folder
            or tar on a store.

    Raises:
        UsageError: it is none of these.
        PublishError: the store fails.
    """
    if not text:
        raise UsageError("The source is an empty text.", "Name a directory or a tar; `.` is this directory.")
    if text.startswith(("http://", "https://")):
        return TarStream(text)
    if text.startswith("file://"):
        text = split_url(text)[1]
    elif "://" in text:
        return _source_on_store(text)
    place = os.path.abspath(os.path.expanduser(text))
    if os.path.isdir(place):
        return DirectorySource(place)
    if not os.path.isfile(place):
        fault = (
            "is neither a directory nor a file"
            if os.path.lexists(place)
            else "there is no such file or directory"
        )
        raise UsageError(f"{text}: {fault}.", "Give a directory or a tar.")
    source = TarSource(place)
    return source if source.is_plain else TarStream(place)


def _source_on_store(url: str) -> PushSource:
    """A tar, if the URL is that of an object; else the objects below it."""
    store = ObjectStore(url)
    if not url.endswith("/"):
        folder, details = single_object(store)
        if details:
            return TarStream(store.url, (folder, details[0]))
    return ObjectSource(store)
