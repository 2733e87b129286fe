"""A reader of EROFS images, written from the kernel's description of the format alone."""

import stat
import struct
from typing import NamedTuple


class Found(NamedTuple):
    """A file, directory or link of an image; `content` is bytes, a target, or None for a directory."""

    mode: int
    links: int
    owner: tuple[int, int]
    mtime_ns: int
    content: bytes | None


class Image:
    """Reads an image whose files lie on its first device."""

    def __init__(self, image: bytes, device: memoryview):
        self.image, self.device = image, device
        magic, _, _, bits, _, self.root, self.count = struct.unpack_from("<IIIBBHQ", image, 1024)
        assert magic == 0xE0F5E1E2
        self.block = 1 << bits
        self.blocks, meta = struct.unpack_from("<II", image, 1024 + 36)
        incompatible, _, devices, slot = struct.unpack_from("<IHHH", image, 1024 + 80)
        assert (incompatible, devices) == (0x4 | 0x8, 2)
        self.meta = meta * self.block
        self.device_blocks, self.device_at = struct.unpack_from("<II", image, slot * 128 + 64)
        assert len(image) == self.blocks * self.block
        assert self.device_at >= self.blocks
        assert self.device_blocks * self.block <= len(device)

    def tree(self) -> dict[bytes, Found]:
        found: dict[bytes, Found] = {}
        self._walk(b"", self.root, self.root, found)
        assert len(found) == self.count
        return found

    def _walk(self, path, nid, above, found):
        inode = self._inode(nid)
        found[path] = inode
        if not stat.S_ISDIR(inode.mode):
            return
        data = self._content(nid)
        names = []
        for start in range(0, len(data), self.block):
            part = data[start : start + self.block]
            count = struct.unpack_from("<H", part, 8)[0] // 12
            entries = [struct.unpack_from("<QHB", part, 12 * number) for number in range(count)]
            ends = [entry[1] for entry in entries[1:]] + [len(part)]
            for (child, begin, kind), end in zip(entries, ends, strict=True):
                names.append((part[begin:end].rstrip(b"\0"), child, kind))
        assert [name for name, *_ in names] == sorted(name for name, *_ in names)
        for name, child, kind in names:
            if name in (b".", b".."):
                assert (child, kind) == (nid if name == b"." else above, 2)
                continue
            self._walk(path + b"/" + name if path else name, child, nid, found)
            format_of = {1: stat.S_IFREG, 2: stat.S_IFDIR, 7: stat.S_IFLNK}
            assert stat.S_IFMT(self._inode(child).mode) == format_of[kind]

    def _inode(self, nid) -> Found:
        fields = struct.unpack_from("<HHHHQIIIIqII", self.image, self.meta + 32 * nid)
        _, _, mode, _, _, _, _, uid, gid, seconds, nanoseconds, links = fields
        content = None if stat.S_ISDIR(mode) else self._content(nid)
        return Found(mode, links, (uid, gid), seconds * 1_000_000_000 + nanoseconds, content)

    def _content(self, nid) -> bytes:
        at = self.meta + 32 * nid
        layout, _, _, _, size, place = struct.unpack_from("<HHHHQI", self.image, at)
        assert layout & 1, "an extended inode"
        if layout >> 1 == 0:
            return self._bytes(place, size)
        assert layout >> 1 == 4
        assert place & 0x20, "with indexes"
        piece = self.block << (place & 0x1F)
        data = b""
        for number in range(-(-size // piece)):
            high, device, block = struct.unpack_from("<HHI", self.image, at + 64 + 8 * number)
            assert (high, device) == (0, 1)
            data += bytes(self.device[block * self.block :][: min(piece, size - len(data))])
        return data

    def _bytes(self, block, size):
        if not size:
            return b""
        if block >= self.device_at:
            block, source = block - self.device_at, self.device
            assert block * self.block + size <= self.device_blocks * self.block
        else:
            source = self.image
        data = source[block * self.block :][:size]
        assert len(data) == size
        return bytes(data)
