# ruff: noqa: PTH103, PTH112, PTH114, PTH116, PTH118, PTH123
"""Directories for tests, whose names are any bytes."""

import os


def write(folder, name, data):
    """Writes a file whose name is any bytes."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def contents(root):
    """All that is in a directory, to be compared."""
    root = os.fsencode(root)
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*files, *folders]:
            place = os.path.join(folder, name)
            path = os.path.relpath(place, root)
            if os.path.islink(place):
                found[path] = ("link", os.path.relpath(os.path.realpath(place), os.path.realpath(root)))
                continue
            status = os.stat(place)
            if os.path.isdir(place):
                found[path] = ("folder", status.st_mode)
                continue
            with open(place, "rb") as file:
                found[path] = (file.read(), status.st_mode, status.st_mtime_ns)
    return found
