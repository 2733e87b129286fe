"""Names: from any path Linux allows to a key any object store allows, and what may not leave a directory.

Paths are relative, with ``/``, as text in which bytes that are not UTF-8 are lone
surrogates (``os.fsdecode``). A key is made of ``[A-Za-z0-9._-+@,%=/]`` only.
"""

import hashlib
import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z0-9._\-+@,/]*")
_PLAIN_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+@,")
# A local store keeps a component in a file name (255 bytes), S3 a whole key in 1,024 bytes; both with
# room for the artifact's own place and for the suffix of a file in the making.
_COMPONENT_LIMIT_BYTES = 200
_KEY_LIMIT_BYTES = 700
# The kernel follows at most 40 symbolic links in one path, then gives up.
_LINK_LIMIT = 40


def object_key(path: str) -> str:
    """Gives the key under which the file at ``path`` is stored.

    Two paths never share a key: ``%`` and ``=`` are always escaped, and only hashes of
    names that are too long begin with ``=``.

    >>> object_key("weights/step 5.pt")
    'weights/step%205.pt'
    """
    key = path
    if not _PLAIN.fullmatch(path):
        key = "/".join(_quoted(component) for component in path.split("/"))
    if len(key) > _COMPONENT_LIMIT_BYTES:
        key = "/".join(_shortened(component) for component in key.split("/"))
    return key if len(key) <= _KEY_LIMIT_BYTES else _hashed(key)


def _quoted(component: str) -> str:
    data = component.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02X}" for byte in data)


def _shortened(component: str) -> str:
    return component if len(component) <= _COMPONENT_LIMIT_BYTES else _hashed(component)


def _hashed(text: str) -> str:
    return "=" + hashlib.sha256(text.encode()).hexdigest()


def stays_inside(path: str) -> bool:
    """Says whether ``path`` is relative, normal and below the directory it is joined to.

    >>> [stays_inside(path) for path in ("a/b", "", "/a", "a/../b", "a//b", ".")]
    [True, False, False, False, False, False]
    """
    if not path or "\0" in path:
        return False
    return all(component not in ("", ".", "..") for component in path.split("/"))


def link_stays_inside(path: str, links: Mapping[str, str]) -> bool:
    """Says whether following the symbolic link at ``path`` never leaves the tree.

    It walks as the kernel does: a link to ``a/..`` is outside if ``a`` is itself a link to
    the top. Dangling links and loops are inside, for they lead nowhere.

    Args:
        path: the link, a key of ``links``.
        links: every symbolic link of the tree with its target.
    """
    where = path.split("/")[:-1]
    ahead = _components(links[path])
    if ahead is None:
        return False
    followed = 1
    while ahead:
        component = ahead.pop()
        if component == "..":
            if not where:
                return False
            where.pop()
            continue
        where.append(component)
        target = links.get("/".join(where))
        if target is None:
            continue
        followed += 1
        if followed > _LINK_LIMIT:
            return True
        further = _components(target)
        if further is None:
            return False
        where.pop()
        ahead.extend(further)
    return True


def _components(target: str) -> list[str] | None:
    """The parts of a link's target, the first one last; None if it is absolute or no target."""
    if not target or target.startswith("/") or "\0" in target:
        return None
    return [part for part in reversed(target.split("/")) if part not in ("", ".")]
