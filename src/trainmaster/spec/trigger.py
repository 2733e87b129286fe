"""`Trigger`: what starts a recipe that a server keeps: a new version of a volume, a time, a webhook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final

from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    ReportedMistake,
    boolean,
    noun,
    pattern,
    read_noun,
    takes,
    text,
)

#: What a run of a workflow that is due does while another one is under way.
CONCURRENCY: Final = ("wait", "skip", "cancel")
#: Of a volume of the team: never a URL, a path or a version.
_VOLUME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
_RIGHT: Final = 'write {volume: NAME}, {schedule: "0 3 * * *"} or webhook'
_CRON: Final = 'write five fields such as "0 3 * * *": minute, hour, day of the month, month, day of the week'
_KINDS: Final = ("volume", "schedule", "webhook")
#: A schedule whose next time is later never comes, such as one for February 30th.
_HORIZON: Final = timedelta(days=366 * 8)


def read_schedule(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read the five fields of a cron schedule."""
    found = " ".join(text(_CRON)(node, path, problems).split())
    if len(found.split(" ")) != 5:
        raise problems.refuse(node, path, f"{node.describe()}; {_CRON}")
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:  # it comes with the extra `server`: the server looks closer
        return found
    try:
        CronSim(found, datetime(2000, 1, 1))
    except (CronSimError, ValueError) as error:
        raise problems.refuse(node, path, f"{node.describe()}: {error}; {_CRON}") from None
    return found


def read_timezone(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read a name of the IANA time zone database."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    right = "write a time zone such as UTC or Europe/Berlin"
    found = text(right)(node, path, problems)
    try:
        ZoneInfo(found)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise problems.refuse(node, path, f"{node.describe()} is no time zone; {right}") from None
    return found


takes(read_schedule, text=r"^\s*(\S+\s+){4}\S+\s*$")
takes(read_timezone, text=r"\S")


class Trigger(Noun):
    """One entry of ``on``; exactly one of volume, schedule and webhook is given.

    Attributes:
        volume: name of a volume of the team, whose new versions start a run.
        schedule: five fields of cron.
        timezone: in which these are meant.
        catch_up: one run for all times that were missed, as while the server was down.
        webhook: whoever knows the secret starts a run.
    """

    volume: Annotated[
        str | None, Key("volume", pattern(_VOLUME, "write the name of a volume of the team, without @"))
    ] = None
    schedule: Annotated[str | None, Key("schedule", read_schedule)] = None
    timezone: Annotated[str, Key("timezone", read_timezone)] = "UTC"
    catch_up: Annotated[bool, Key("catch_up", boolean)] = True
    webhook: Annotated[bool, Key("webhook", boolean)] = False
    also = ({"const": "webhook"},)
    one_of = _KINDS

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """``webhook`` alone is a trigger, too."""
        if node.kind is Kind.SCALAR and node.text == "webhook":
            entry = YamlNode(Kind.SCALAR, node.line, node.column, text="true", plain=True)
            return YamlNode(
                Kind.MAPPING, node.line, node.column, entries={"webhook": entry}, keys={"webhook": node}
            )
        if node.kind is not Kind.MAPPING:
            raise problems.refuse(node, path, f"{node.describe()}; {_RIGHT}")
        return node

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = [kind for kind in _KINDS if kind in node.entries]
        if len(given) != 1:
            problems.add(node, path, f"{' and '.join(given) + ' together' if given else 'nothing'}; {_RIGHT}")
        if given == ["webhook"] and values.get("webhook") is False:
            problems.add(node.entries["webhook"], (*path, "webhook"), "false; write true, or leave it out")
        for key in ("timezone", "catch_up"):
            if key in node.entries and "schedule" not in node.entries:
                message = f"`{key}` without `schedule`; it is for times"
                problems.add(node.entries[key], (*path, key), message)

    @property
    def key(self) -> str:
        """What it is called among the triggers of its workflow, and for people.

        >>> Trigger(volume="pets").key, Trigger(schedule="0 3 * * *").key, Trigger(webhook=True).key
        ('volume pets', 'schedule 0 3 * * * UTC', 'webhook')
        """
        if self.volume is not None:
            return f"volume {self.volume}"
        return f"schedule {self.schedule} {self.timezone}" if self.schedule is not None else "webhook"

    def times(self, after_s: float) -> Iterator[float]:
        """When a schedule comes after a time, one after the other: Unix seconds.

        Daylight saving is kept as Debian's cron does: what would come in an hour that is left out comes
        right after it, what would come in an hour that is there twice comes once; but what comes every hour,
        or minute, goes on evenly.
        """
        from zoneinfo import ZoneInfo

        from cronsim import CronSim

        begin = datetime.fromtimestamp(after_s, ZoneInfo(self.timezone))
        last, end = after_s, after_s
        for at in CronSim(self.schedule or "", begin):
            end = at.timestamp()
            if end - last > _HORIZON.total_seconds():
                return
            if end > last:
                yield end
                last = end

    def next_times(self, after_s: float, count: int) -> list[float]:
        """The next of them, at most so many."""
        return [] if self.schedule is None else list(islice(self.times(after_s), count))


def read_triggers(node: YamlNode, path: Path, problems: Problems) -> tuple[Trigger, ...]:
    """Read one trigger, or a list of them."""
    found: list[Trigger] = []
    is_list = node.kind is Kind.LIST
    if is_list and not node.items:
        raise problems.refuse(node, path, f"{node.describe()}; {_RIGHT}")
    for index, item in enumerate(node.items if is_list else [node]):
        where = (*path, str(index)) if is_list else path
        with problems.goes_on():
            trigger = read_noun(Trigger, item, where, problems)
            if any(trigger.key == each.key for each in found):
                raise problems.refuse(item, where, f"{trigger.key} a second time; name it once")
            found.append(trigger)
    if len(found) < (len(node.items) if is_list else 1):
        raise ReportedMistake
    return tuple(found)


takes(read_triggers, items=noun(Trigger), single=True)


def needs_server(what: str) -> UsageError:
    """What is said of a recipe with ``on`` where no server keeps it.

    Args:
        what: the key of one of its triggers.
    """
    return UsageError(
        f"on: {what}; only a server keeps a recipe and starts it itself",
        "Send it to one (`trainmaster login URL`, docs/workflows.md); `--set on=null` runs it once.",
    )


#: How a command of a recipe makes a version of a volume, as far as its words tell.
_PUSH: Final = re.compile(r"trainmaster\s+volume\s+push\s+(?:-\S+\s+)*[^\s|;&]+\s+[\"']?([^\s\"'|;&]+)")


def pushed_volumes(commands: Iterator[str]) -> list[str]:
    r"""Names of volumes that commands push, where they say so in words.

    >>> pushed_volumes(iter(["python x.py\\ntrainmaster volume push out/ pets && true"]))
    ['pets']
    """
    named = (name for command in commands for name in _PUSH.findall(command))
    return [name for name in dict.fromkeys(named) if re.fullmatch(_VOLUME, name)]
