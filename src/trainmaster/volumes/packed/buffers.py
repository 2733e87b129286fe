"""Memory for chunks."""

import mmap


def chunk_buffer(size_bytes: int) -> mmap.mmap:
    """Gives memory that counts only as far as it is written to; a `bytearray` is filled with zeros first.

    Not in large pages: to find room for them, a machine whose memory is full of files takes longer
    than they save.
    """
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
