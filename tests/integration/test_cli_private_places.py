"""Whatever verb comes first: home, database and cache are for their owner only."""

from __future__ import annotations

import stat
from pathlib import Path


def test_home_and_cache_are_private_after_each_verb(tm) -> None:
    tm.write("data/one", "1\n")
    cache = Path(tm.env["TRAINMASTER_CACHE"])

    def open_to_others() -> list[str]:
        places = [tm.home, cache, *tm.home.glob("trainmaster.db*")]
        return [f"{path}: {path.stat().st_mode:o}" for path in places if path.stat().st_mode & 0o077]

    assert not tm.home.exists()
    tm.call("volume", "push", tm.work / "data", "cats")
    assert stat.S_IMODE(tm.home.stat().st_mode) == 0o700
    tm.call("run", tm.task("true"))
    assert open_to_others() == []
    # As another umask, or a person, may have left them.
    for path in (tm.home, cache):
        path.chmod(0o755)
    tm.call("status")
    assert open_to_others() == []
    cache.chmod(0o2775)
    tm.call("volume", "push", tm.work / "data", "dogs")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o2775, "shared on purpose"
