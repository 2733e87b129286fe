"""Packed volumes: immutable, versioned sets of files in chunks on object storage.

::

    URL/heads/000001.json            a version; created once, never changed
    URL/manifests/<sha256>.parquet   its tables: files, chunks, parts
    URL/chunks/ab/<blake3>           up to 64 MiB; shared by the versions that need it
    URL/pushes/<id>.json             a push that is under way
    URL/collections/<id>.json        a collection of garbage that is under way
    URL/collections/000001.deletions names that are given up, see `deletions`
"""
