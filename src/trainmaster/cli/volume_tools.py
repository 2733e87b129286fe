"""What the verbs of ``trainmaster volume`` say of versions and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.cli.output import say, size

if TYPE_CHECKING:
    from trainmaster.service.volumes import Collected, Entry, Head, OpenVolume, VersionCheck


def opened_volume(uri: str) -> OpenVolume:
    """Opens a version; what a script would be warned of is said.

    Raises:
        NotFoundError: there is no such volume or version.
        UsageError: this is no address of a volume.
        PublishError: it is damaged, or the store fails.
    """
    import warnings

    from trainmaster.service.volumes import open_volume

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        opened = open_volume(uri)
    for warning in caught:
        say(str(warning.message))
    return opened


def entry_line(entry: Entry) -> str:
    """Gives a line of ``ls``."""
    mark = {"file": "", "directory": "/", "symlink": f" -> {entry.target}"}[entry.kind]
    size = f"{entry.size_bytes:>14,}" if entry.kind == "file" else " " * 14
    return f"{size}  {entry.path}{mark}"


def files_text(head: Head) -> str:
    """Says how much a version is."""
    return f"{counted(head.file_count, 'file')}, {size(head.total_bytes)}"


def gc_command(volume: str, grace: str) -> str:
    """Gives the command that frees what was marked.

    >>> gc_command("pets", "24h"), gc_command("pets", "0s")
    ('trainmaster volume gc pets', 'trainmaster volume gc pets --grace 0s')
    """
    from shlex import join

    return join(["trainmaster", "volume", "gc", volume, *([] if grace == "24h" else ["--grace", grace])])


def collected_lines(done: Collected, url: str, grace: str, command: str) -> list[str]:
    """Says what `gc` has done.

    Args:
        done: by it.
        url: of the volume.
        grace: as the user has given it.
        command: what frees what was marked.
    """
    from datetime import UTC, datetime

    def counts(chunks: int, tables: int) -> str:
        return counted(chunks, "chunk") + (f" and {counted(tables, 'table')}" if tables else "")

    lines = []
    has_deleted = bool(done.deleted_chunks or done.deleted_tables)
    if done.under_way:
        owners = f" ({', '.join(done.owners)})" if done.owners else ""
        lines.append(
            f"{url}: a push or another collection is under way{owners}: "
            f"{'not all' if has_deleted else 'nothing'} was deleted; try later. "
            "One that was killed on another machine counts for an hour."
        )
    if has_deleted or not done.under_way:
        young = (
            f"; {counted(done.young_chunks, 'chunk')} younger than {grace} left alone"
            if done.young_chunks
            else ""
        )
        freed = counts(done.deleted_chunks, done.deleted_tables)
        lines.append(f"{freed} deleted, {size(done.deleted_bytes)} freed{young}")
    if done.free_at_s is not None:
        at = datetime.fromtimestamp(done.free_at_s, UTC)
        marked = f"{counts(done.marked_chunks, done.marked_tables)} ({size(done.marked_bytes)})"
        lines.append(f"{marked} marked; from {at:%F %T} UTC on this frees them: {command}")
    return lines


# Of one version; --json has all.
_MOST_TOLD = 20


def verdict_lines(verdict: VersionCheck, deep: bool) -> list[str]:
    """Says what `fsck` has found of a version."""
    name = f"version {verdict.version}"
    if not verdict.damage:
        head = verdict.head
        proof = "as they were indexed" if head and head.kind == "indexed" else "proved" if deep else "there"
        what = files_text(head) if head else ""
        chunks = f" in {counted(head.chunk_count, 'chunk')}" if head and head.kind == "packed" else ""
        return [f"{name}: {what}{chunks}, all {proof}"]
    lines = [f"{name}: {one.what}" for one in verdict.damage[:_MOST_TOLD]]
    if len(verdict.damage) > _MOST_TOLD:
        lines.append(f"{name}: and {len(verdict.damage) - _MOST_TOLD:,} more")
    advice = dict.fromkeys(one.advice for one in verdict.damage)
    return lines + [f"{name}: {one}" for one in advice]


def counted(count: int, noun: str) -> str:
    """Says how many there are.

    >>> counted(1, "chunk"), counted(2000, "chunk")
    ('1 chunk', '2,000 chunks')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
