"""JupyterLab on a rented machine, which keeps what is written there for the next attempt.

A task runs it as text, with any Python that has JupyterLab: 3.9 or newer. Nothing of ours can be imported.

What is written is copied into the directory of checkpoints, with which the next attempt begins: one in
which kernels write without a pause would never stand still. Each checkpoint is sent whole, so they are
neither large nor frequent. The code comes first, then notebooks before what lies deep in an environment.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

EVERY_S = 180
MOST_BYTES, MOST_FILES = 512 << 20, 5000


class WrittenFiles:
    """What is written in a directory, and its copy that becomes a checkpoint.

    Args:
        code: what the task was given; it has links to data.
        written: where JupyterLab and its kernels write; the first attempt has put the code there.
        kept: the directory of checkpoints.
    """

    def __init__(self, code: Path, written: Path, kept: Path) -> None:
        self._code, self._written, self._kept = code, written.resolve(), kept.resolve()
        self._part = self._kept / ".notebook-part"
        self._most_left_out = 0
        self._over = threading.Event()
        self._keeping = threading.Thread(target=self._keep_on, daemon=True)

    def begin(self) -> None:
        """Bring back what an earlier attempt has kept, with links to data; keep what is written then."""
        with suppress(OSError):
            self._part.unlink()
        shutil.copytree(self._kept, self._written, symlinks=True, dirs_exist_ok=True)
        for link in _below(self._code):
            there = self._written / "code" / link.relative_to(self._code)
            with suppress(OSError):
                if _leads_out(link, self._code) and not os.path.lexists(there):
                    there.parent.mkdir(parents=True, exist_ok=True)
                    there.symlink_to(link.readlink())
        os.chdir(self._written)
        self._keeping.start()

    def keep(self) -> None:
        """Bring the copy up to date; a file that changes meanwhile stays as it was kept before."""
        chosen = self._chosen()
        for path in reversed(list(_below(self._kept))):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                elif path not in chosen:
                    path.unlink()
        for there, path in chosen.items():
            with suppress(OSError):
                before = _seen(path)
                if before != _seen(there):
                    there.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, self._part, follow_symlinks=False)
                    if _seen(path) == before:
                        self._part.replace(there)
                    else:
                        self._part.unlink()

    def end(self) -> None:
        """Keep all once more. Links that lead out cannot be saved, so they go."""
        self._over.set()
        self._keeping.join()
        with suppress(OSError):
            self.keep()
        for link in [path for path in _below(self._written) if _leads_out(path, self._written)]:
            print("not kept, as it leads elsewhere:", link, flush=True)  # noqa: T201 - the log of its task
            link.unlink()

    def _keep_on(self) -> None:
        while not self._over.wait(EVERY_S):
            with suppress(OSError):
                self.keep()

    def _chosen(self) -> dict[Path, Path]:
        """Places in the copy of what is kept, and of which files."""
        left, chosen, left_out = MOST_BYTES, dict[Path, Path](), list[Path]()
        found = [(path, _seen(path)) for path in _below(self._written) if not _leads_out(path, self._written)]
        files = [(path, its[1]) for path, its in found if its and its[0] in (stat.S_IFREG, stat.S_IFLNK)]
        for path, size in sorted(files, key=self._rank):
            if size <= left and len(chosen) < MOST_FILES:
                left -= size
                chosen[self._kept / path.relative_to(self._written)] = path
            else:
                left_out.append(path)
        if len(left_out) > self._most_left_out:
            self._most_left_out = len(left_out)
            said = f"{len(left_out)} files, such as {str(left_out[0])!a}"
            print(f"too much to keep before the end: {said}", flush=True)  # noqa: T201 - the log of its task
        return chosen

    def _rank(self, file: tuple[Path, int]) -> tuple[bool, int, int, Path]:
        path, size = file
        brought = os.path.relpath(path, self._written / "code")
        return not os.path.lexists(self._code / brought), len(path.parts), size, path


def _below(top: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(top):
        yield from [Path(place, name) for name in folders + files]


def _leads_out(link: Path, top: Path) -> bool:
    if not link.is_symlink():  # most files: what they lead to takes a look at each folder above them
        return False
    # Not `resolve`, which refuses links that go in circles.
    return link.readlink().is_absolute() or top not in Path(os.path.realpath(link)).parents


def _seen(path: Path) -> tuple[int, int, int] | None:
    """Its type, its size, and when it was changed."""
    with suppress(OSError):
        found = path.lstat()
        return stat.S_IFMT(found.st_mode), found.st_size, found.st_mtime_ns
    return None


def prepare_server() -> None:
    """Have JupyterLab end when it is not used.

    What open pages ask for again and again is no use, or it would never end. Jupyter itself looks once a
    minute whether nothing was done, and the machine costs meanwhile.
    """
    handlers = import_module("jupyter_server.base.handlers")
    note_use = handlers.APIHandler.update_api_activity

    def note_what_users_do(handler: SimpleNamespace) -> None:
        asked = handler.request
        looks = asked.method in ("GET", "HEAD") and asked.path.startswith("/api/")
        if not looks and not asked.path.startswith("/lab/api/workspaces"):
            note_use(handler)

    def look_often(app: SimpleNamespace) -> None:
        import_module("tornado.ioloop").PeriodicCallback(app.shutdown_no_activity, 5000).start()

    handlers.APIHandler.update_api_activity = note_what_users_do
    import_module("jupyter_server.serverapp").ServerApp.init_shutdown_no_activity = look_often


def main() -> None:
    """Run JupyterLab until it ends."""
    prepare_server()
    places = (Path(os.environ[f"TRAINMASTER_{name}_DIR"]) for name in ("OUTPUT", "CHECKPOINT"))
    written = WrittenFiles(Path.cwd(), *places)
    written.begin()
    try:
        import_module("jupyterlab.labapp").main()
    finally:
        written.end()


if __name__ == "__main__":
    main()
