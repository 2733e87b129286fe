"""What the verbs print with: results go to standard output; progress, questions, errors to standard error."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from trainmaster.spec.errors import TrainmasterError, UsageError, fails_as
from trainmaster.spec.metric_names import TOTAL_STEPS, in_order, says_how_good
from trainmaster.spec.redaction import redacted
from trainmaster.spec.states import EndReason, counted_ends
from trainmaster.spec.units import QUOTE_RESOLUTION, counted, dollars, format_bytes, format_duration, worked_s

if TYPE_CHECKING:
    from trainmaster.service.runs.highlights import Highlights

duration = format_duration
T = TypeVar("T")

#: Models named one by one; `trainmaster models RUN` lists the others.
SHOWN_MODELS = 5


def show(text: str) -> None:
    """A line, or a table, of what was asked for: the only text that ``trainmaster VERB | less`` gets.

    Raises:
        BrokenPipeError: the reader is gone; `main` ends the verb.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # names and metrics may hold what this terminal cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    print(redacted(for_terminal(text) if sys.stdout.isatty() else text), flush=True)  # noqa: T201


def say(text: str = "") -> None:
    """A line about the work: progress, a note, a question."""
    try:
        text = for_terminal(text) if sys.stderr.isatty() else text
        print(redacted(text), file=sys.stderr, flush=True)  # noqa: T201
    except OSError:  # the reader is gone (`2>&1 | head`, a closed terminal): the work goes on
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the process's life


def for_terminal(text: str) -> str:
    r"""A text whose control characters are shown, not sent: names, metrics and notes may come from anybody.

    >>> print(for_terminal("a\x1b]0;b\x07 \u202e\tc"))
    a\x1b]0;b\x07 \u202e\tc
    """
    if text.isprintable():
        return text
    # Lines stay; surrogates are bytes of names that are not UTF-8.
    kept = (
        each if each.isprintable() or each == "\n" or "\udc80" <= each <= "\udcff" else ascii(each)[1:-1]
        for each in text
    )
    return "".join(kept)


def can_ask() -> bool:
    """Whether the user sits before a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def says_yes(question: str) -> bool:
    """Ask at the terminal; what is not said is no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def need_yes(question: str, what: str, not_done: str, so: str, hint: str = "`--yes` agrees.") -> None:
    """Go on only if the user says yes.

    Args:
        question: for the terminal.
        what: needs a yes, where there is no terminal.
        not_done: without one.
        so: what has not happened.
        hint: how to agree beforehand.

    Raises:
        UsageError: the user does not want it, or there is no terminal to ask on.
    """
    if not can_ask():
        raise UsageError(f"{what}, and there is no terminal to ask on", f"{so} {hint}")
    if not says_yes(question):
        raise UsageError(f"{not_done}: you did not agree", so)


def say_error(error: TrainmasterError) -> None:
    """An error for people: no traceback, and what to do next."""
    say(str(error) if error.exit_code == 130 else f"error: {error}")


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object as a line of standard output."""
    print(redacted(json.dumps(value, allow_nan=False)), flush=True)  # noqa: T201


def tell(found: Mapping[str, Any], words: str, *, as_json: bool) -> None:
    """What a verb has done, as the option says: a JSON object, or a line about the work."""
    print_json(found) if as_json else say(words)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded with spaces; nothing is cut off.

    >>> print(table(["a", "bb"], [["10", "2"]]))
    a   bb
    10  2
    """
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(header))]
    padded = (
        [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        for line in lines
    )
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _width(text: str) -> int:
    """How many columns of a terminal it takes: names may be Chinese, or have accents of their own."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def show_list(
    key: str, found: Sequence[T], shown: Callable[[Sequence[T]], str], none: str, *, as_json: bool
) -> None:
    """What is listed: a JSON object with it, text for people, or where one comes from if there is none.

    Args:
        key: of the JSON object.
        found: objects.
        shown: a table or lines of some.
        none: what to do without any.
        as_json: as the option says.
    """
    if as_json:
        print_json({key: found})
    elif found:
        show(shown(found))
    else:
        say(none)


def number(value: object) -> str:
    r"""A metric or a parameter for people, on one line.

    >>> print(number("two\nlines"), number(0.25))
    two\nlines 0.25
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", r"\n")


def verdict_lines(name: str, experiment: Mapping[str, Any]) -> list[str]:
    """Where it began, what ended it early, its gate's word, machines, lost output, what its model is now."""
    lines = []
    if "begins_with" in experiment:
        lines = [f"{name} begins with checkpoint {experiment['begins_with']}"]
    if earlier := experiment.get("search", {}).get("from"):
        run, _, count = earlier.rpartition("@")
        lines.append(f"the search of {name} goes on from {run}: {counted(int(count), 'task')}")
    refused = experiment.get("message") if experiment["reason"] == EndReason.GATE_REFUSED else ""
    until = experiment.get("until")
    early = [] if until is None else [f"{name} ends at {until['condition']}: {until['reached']} so far"]
    if until is not None and experiment["reason"] == EndReason.SUCCEEDED:
        early = [f"{name}: {experiment['message']}"] if "message" in experiment else []
    lines += early + [f"gate of {name}: {said}" for said in (refused or experiment.get("gate"),) if said]
    lines += [f"adapt: {each['words']}" for each in experiment.get("adapted", ())]
    lines += [each["words"] for each in experiment.get("lost_output", ())]
    return lines + ([experiment["promotion"]] if "promotion" in experiment else [])


def best_text(experiment: str, best: Mapping[str, Any], metric: str, place: int = 1) -> str:
    """One of the best tasks of a search on one line.

    >>> best_text("sweep", {"task": 7, "value": 0.93, "parameters": {"lr": 0.01}}, "accuracy", place=2)
    '2. sweep/7  accuracy=0.93  lr=0.01'
    """
    rank = "best" if place == 1 else f"{place}."
    values = parameters_text(best["parameters"])
    return f"{rank} {experiment}/{best['task']}  {metric}={number(best['value'])}  {values}"


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """With what a task was started, on one line."""
    return " ".join(f"{name}={number(value)}" for name, value in parameters.items())


def searched(experiment: Mapping[str, Any]) -> str:
    """The metric of an experiment's search."""
    return str(experiment["search"]["metric"])


def quote_text(quote: Mapping[str, Any], bill_usd: float = 0.0) -> str:
    """What was quoted for a run, and whether it was kept; no quote counts what machines cost after its end.

    >>> interval = {"p5": 50, "p50": 60, "p95": 75}
    >>> free = dict.fromkeys(interval, 0)
    >>> said = {"kind": "binding", "time_s": interval, "cost_usd": free}
    >>> quote_text({**said, "kept": True, "actual": {"time_s": 48, "cost_usd": 0}})
    'quote: 1 min (50 s to 1 min 15 s), $0: kept (it took less: 48 s)'
    >>> quote_text({**said, "kept": False, "actual": {"time_s": 55, "cost_usd": 0.5}})
    'quote: 1 min (50 s to 1 min 15 s), $0: not kept (it cost more: $0.50)'
    >>> quote_text({**said, "kept": False, "actual": {"time_s": 80, "cost_usd": 3e-7}})
    'quote: 1 min (50 s to 1 min 15 s), $0: not kept (it took more: 1 min 20 s)'
    >>> actual = {"time_s": 80, "cost_usd": 0, "failed_attempts": {"OOM": 2}}
    >>> quote_text({**said, "kept": False, "actual": actual}).partition("kept ")[2]
    '(it took more: 1 min 20 s, attempts failed: 2 OOM)'
    >>> quote_text({**said, "kept": False, "actual": {"time_s": 60, "cost_usd": 0}})
    'quote: 1 min (50 s to 1 min 15 s), $0: not kept (the run did not succeed)'
    >>> quote_text({**said, "kept": True, "actual": {"time_s": 60, "cost_usd": 0.0}}, bill_usd=0.5)
    'quote: 1 min (50 s to 1 min 15 s), $0: kept ($0.50 of the bill came after its end)'
    >>> quote_text({**said, "kept": None, "passed": "train has passed the 200 steps"})
    'quote: 1 min (50 s to 1 min 15 s), $0: it does not hold any more: train has passed the 200 steps'
    """
    span, amount = span_text(quote["time_s"]), dollars_text(quote["cost_usd"])
    word = "quote" if quote["kind"] == "binding" else quote["kind"]
    end = {True: ": kept", False: ": not kept", None: ""}[quote["kept"]]
    if quote.get("ended_by_hand"):
        end = ": neither kept nor broken, as the run was ended by hand"
    elif actual := quote.get("actual"):
        told = [
            f"it {verb} {'less' if quote['kept'] else 'more'}: {text(actual[key])}"
            for key, verb, text in (("time_s", "took", format_duration), ("cost_usd", "cost", dollars))
            if _is_beyond(quote[key], actual[key], is_less=quote["kept"])
        ]
        if quote["kept"] is False and not told:
            told.append("the run did not succeed")
        elif failed := actual.get("failed_attempts"):
            told.append(f"attempts failed: {counted_ends(failed)}")
        told += [actual["held"]] if "held" in actual and quote.get("outside") == "late" else []
        told += [quote["passed"]] if "passed" in quote else []
        if (later_usd := bill_usd - actual["cost_usd"]) > QUOTE_RESOLUTION:
            told.append(f"{dollars(later_usd)} of the bill came after its end")
        end += f" ({', '.join(told)})" * bool(told)
    elif "passed" in quote:
        end = f": it does not hold any more: {quote['passed']}"
    return f"{word}: {span}, {amount}{end}"


def _is_beyond(interval: Mapping[str, float], came: float, *, is_less: bool) -> bool:
    """What is less breaks no quote, so of one that was not kept only what is more is said."""
    by = interval["p5"] - came if is_less else came - interval["p95"]
    return by > QUOTE_RESOLUTION


def phases_text(summary: Mapping[str, Any]) -> str:
    """What a run has done, does and has still to do, in one line; empty if nothing of that is known.

    >>> setup = {"phase": "setup", "state": "done", "seconds": 40.0, "late_s": 10.0, "expected_s": None}
    >>> span = {"p5": 20, "p50": 25, "p95": 30}
    >>> steps = {"phase": "steps", "state": "now", "seconds": 5.0, "late_s": 0.0, "expected_s": span}
    >>> back = {**steps, "phase": "saving", "state": "ahead", "seconds": 0.0}
    >>> phases_text({"seconds": 45.0, "phases": {"train": [setup, steps, back]}, "ends": {"time_s": span}})
    'setup 40 s (late by 10 s), now steps 5 s of 25 s (20 s to 30 s), then saving'
    """
    found = []
    experiments = [(name, lines) for name, lines in summary.get("phases", {}).items() if lines]
    for name, lines in experiments:
        is_over = summary["experiments"][name]["state"] == "DONE" if "experiments" in summary else False
        if len(experiments) > 1 and is_over:
            continue
        parts = [_phase_text(each) for each in lines if each["state"] != "ahead"]
        ahead = ", ".join(each["phase"] for each in lines if each["state"] == "ahead")
        if parts:
            words = ", ".join([*parts, *([f"then {ahead}"] if ahead and not is_over else [])])
            found.append(f"{name}: {words}" if len(experiments) > 1 else words)
    if found and (left := summary.get("passed") or left_text(summary)):
        found.append(left)
    return "; ".join(found)


def left_text(summary: Mapping[str, Any]) -> str:
    """When a run ends as things stand; empty if unknown, or beyond what was foretold."""
    if "ends" not in summary or "queued" in summary:
        return ""
    left = {name: summary["ends"]["time_s"][name] - worked_s(summary) for name in ("p5", "p50", "p95")}
    if left["p50"] <= 0:
        return ""
    return f"ends in {duration(left['p50'])} ({duration(max(left['p5'], 0.0))} to {duration(left['p95'])})"


def _phase_text(each: Mapping[str, Any]) -> str:
    is_now, span = each["state"] == "now", each["expected_s"]
    words = f"{'now ' * is_now}{each['phase']} {duration(each['seconds'])}"
    if is_now and span:
        words += f" of {span_text(span)}"
    return words + (f" (late by {duration(each['late_s'])})" if each["late_s"] else "")


def span_text(time_s: Mapping[str, float]) -> str:
    """An interval of seconds."""
    return f"{duration(time_s['p50'])} ({duration(time_s['p5'])} to {duration(time_s['p95'])})"


def dollars_text(cost: Mapping[str, float]) -> str:
    """An interval of US dollars."""
    if not cost["p95"]:
        return "$0"
    return f"{dollars(cost['p50'])} ({dollars(cost['p5'])} to {dollars(cost['p95'])})"


def when(at: float) -> str:
    """Unix seconds as a time for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def queue_text(queued: dict[str, Any]) -> str:
    """What a run waits for, and since when."""
    import time

    from trainmaster.service import place_text

    waited = f"has waited {duration(time.time() - queued['since'])} for"
    place = f"; {place_text(queued['place'])}" if "place" in queued else ""
    return f"{waited} {queued['waits_for']}{place}"


def bill(usd: float) -> str:
    """What a run has cost, for people.

    >>> bill(0.0), bill(0.0018), bill(12.345)
    ('$0.00', '$0.0018', '$12.35')
    """
    return dollars(usd) if usd else "$0.00"


def driver_trouble(run: Mapping[str, Any]) -> str:
    """What is wrong with the driver of a run, as a summary has it, or which of its machines does; else empty.

    >>> driver_trouble({"state": "RUNNING", "driver": {"state": "stopped", "pid": 12, "silent_s": 2.0}})
    'process 12, which drives it, is stopped'
    >>> driver_trouble({"state": "QUEUED", "driver": None, "queued": {"waits_for": "$5"}})
    ''
    >>> driver_trouble({"state": "RUNNING", "driver": {"state": "working", "pid": None, "machine": "i-0a1b"}})
    'its machine i-0a1b drives it'
    """
    driver = run.get("driver")
    if run["state"] == "DONE" or _waits_for_its_turn(run):
        return ""
    if driver is None:
        return "nobody drives it"
    subject = f"process {driver['pid']}, which drives it," if driver["pid"] else "its driver"
    if driver["state"] == "stopped":
        return f"{subject} is stopped"
    if driver["state"] == "silent":
        return f"{subject} was last heard of {duration(driver['silent_s'])} ago"
    return f"its machine {driver['machine']} drives it" if "machine" in driver else ""


def _waits_for_its_turn(run: Mapping[str, Any]) -> bool:
    """On a server: it may not be driven yet."""
    return "waits_for" in run.get("queued", {})


def driver_advice(run: Mapping[str, Any]) -> str:
    """What to do about it; empty if nothing is to be done."""
    driver = run.get("driver")
    if run["state"] != "DONE" and driver is None and not _waits_for_its_turn(run):
        return f"`trainmaster resume {run['run']}` goes on with it"
    if driver is not None and driver["state"] == "stopped":
        return f"`kill -CONT {driver['pid']}` lets {run['run']} go on"
    return ""


def driver_line(run: Mapping[str, Any]) -> str:
    """Both; empty if all is well."""
    return ": ".join(filter(None, (driver_trouble(run), driver_advice(run))))


def model_text(model: dict[str, Any]) -> str:
    """Where a model of a summary lies, with what it was made, on one line.

    >>> model = {"experiment": "a", "task": 2, "metrics": {"loss": 0.5}, "uri": "file:///2"}
    >>> model_text({**model, "parameters": {"lr": 0.1, "penalty": "l2"}})
    'model a/2  lr=0.1 penalty=l2  loss=0.5  file:///2'
    """
    values = parameters_text(model["parameters"])
    name = f"model {model['experiment']}/{model['task']}"
    parts = [name, values, metrics_text(model["metrics"]), model["uri"]]
    return "  ".join(part for part in parts if part)


def model_lines(run: str, summary: Mapping[str, Any]) -> list[str]:
    """The models of a run, those of the best tasks first, and how to see all if there are many.

    >>> of = {"metrics": {}, "parameters": {}}
    >>> models = [{"experiment": "a", "task": n, "uri": f"file:///{n}", **of} for n in range(9)]
    >>> summary = {"models": models, "experiments": {"a": {"top": [{"task": 7}, {"task": 2}]}, "b": {}}}
    >>> model_lines("r", summary)[::2]
    ['model a/7  file:///7', 'model a/0  file:///0', 'model a/3  file:///3']
    """
    tops = ((name, each.get("top", ())) for name, each in summary["experiments"].items())
    ranks = {(name, best["task"]): rank for name, top in tops for rank, best in enumerate(top)}
    models = sorted(
        summary["models"], key=lambda model: ranks.get((model["experiment"], model["task"]), len(ranks))
    )
    lines = [model_text(model) for model in models[:SHOWN_MODELS]]
    if len(models) > SHOWN_MODELS:
        lines.append(f"... {len(models)} models in all: `trainmaster models {run}`")
    return lines


def left_lines(run: str, summary: Mapping[str, Any], highlights: Highlights) -> list[str]:
    """What the tasks of a run have left: its models, where there are none, and what is not saved."""
    lines = model_lines(run, summary)
    lines += [without_model_text(**left) for left in highlights.without_model]
    if highlights.beside:
        lines.append(beside_text(run, highlights.beside))
    return lines + [unsaved_text(each) for each in summary.get("unsaved", ())[:SHOWN_MODELS]]


def without_model_text(experiment: str, tasks: int, silent: int, metrics: dict[str, Any]) -> str:
    """What tasks that succeeded have left where it is no model.

    >>> without_model_text("train", 1, 0, {"epoch": 2, "accuracy": 0.5})
    'train: epoch=2 accuracy=0.5, no model: nothing was written into TRAINMASTER_OUTPUT_DIR'
    >>> without_model_text("sweep", 4, 4, {})
    'sweep: 4 tasks left no metrics and no model: nothing was written into TRAINMASTER_OUTPUT_DIR'
    """
    if tasks == 1 and metrics:
        left = f"{metrics_text(metrics)}, no model"
    else:
        subject = "the task" if tasks == 1 else f"{tasks} tasks"
        left = f"{subject} left {'no metrics and ' if silent == tasks else ''}no model"
    return f"{experiment}: {left}: nothing was written into TRAINMASTER_OUTPUT_DIR"


def beside_text(run: str, names: Sequence[str]) -> str:
    """What was written beside the code, where nothing was written into TRAINMASTER_OUTPUT_DIR.

    >>> first, then = beside_text("job-1", ["a.pt", "b.pt"]).split(". `")
    >>> first
    'written beside the code, which keeps no model: a.pt, b.pt'
    >>> then.partition("; ")[2]
    '`mv a.pt "$TRAINMASTER_OUTPUT_DIR" || true` ends a `command` that keeps it'
    """
    first = shlex.quote(names[0])
    return (
        f"written beside the code, which keeps no model: {', '.join(names)}. `trainmaster cp {run}:{first} "
        f'.` gets it; `mv {first} "$TRAINMASTER_OUTPUT_DIR" || true` ends a `command` that keeps it'
    )


def unsaved_text(unsaved: dict[str, Any]) -> str:
    """What of a task is not saved, where it is and what to do, on one line."""
    where = f" is kept in {unsaved['directory']}" if unsaved["directory"] else ""
    what = f"{unsaved['what']} {unsaved['experiment']}/{unsaved['task']}{where}"
    if "command" in unsaved:
        return f"not saved: {what}; `{unsaved['command']}` publishes it"
    return f"not saved yet: {what}; it was tried {unsaved['tries']} times"


def metrics_text(metrics: Mapping[str, Any], limit: int = 6) -> str:
    """Metrics on one line: how far it is, then how good; of too many those that matter.

    >>> words = {"seed": 1, "epoch": 3, "loss": 7, "time": 9, "val_loss": None, "test_acc": 6, "step": 98}
    >>> words["total_steps"] = 100
    >>> metrics_text(words)
    'step=98 epoch=3 loss=7 val_loss=nan test_acc=6 seed=1'
    >>> metrics_text(words, limit=4)
    'step=98 epoch=3 val_loss=nan test_acc=6'
    """
    ordered = [name for name in in_order(metrics) if name != TOTAL_STEPS]  # how far it is says more
    matter = set(sorted(ordered, key=_rank)[:limit])
    shown = {key: "nan" if metrics[key] is None else number(metrics[key]) for key in ordered if key in matter}
    return " ".join(f"{key}={value}" for key, value in shown.items())


def _rank(metric: str) -> int:
    """Of too many: how far it is, what counts in the end, what is trained by, all else."""
    if metric in ("step", "epoch"):
        return 0
    if not says_how_good(metric):
        return 3
    return 1 if metric.startswith(("test", "val", "eval")) else 2


def usage_text(usage: dict[str, Any]) -> str:
    """What the tasks of an experiment have used, on one line; rates are means of a task.

    >>> usage_text({"tasks": 1, "seconds": 10, "cpu_share": 1.94, "peak_rss_bytes": 3e9, "bytes_sent": 3.4e8})
    '1.9 cores, 3.0 GB, 34 MB/s out'
    """
    parts = [f"{usage['cpu_share']:.1f} cores", format_bytes(usage["peak_rss_bytes"])]
    for key, word in (("bytes_sent", "out"), ("bytes_received", "in")):
        rate = usage.get(key, 0) / usage["seconds"]
        if rate >= 1000:  # a few bytes are only a sign of life
            parts.append(f"{format_bytes(rate)}/s {word}")
    if "gpu_utilisation" in usage:
        parts.append(f"{usage['gpu_utilisation']:.1f} GPUs")
    if "gpu_memory_bytes" in usage:
        parts.append(f"{format_bytes(usage['gpu_memory_bytes'])} on GPUs")
    if usage["tasks"] > 1:
        parts.append(f"mean of {usage['tasks']} tasks")
    return ", ".join(parts)


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """What the text of an option means.

    Raises:
        UsageError: nothing.
    """
    with fails_as(option, on=ValueError):
        return parse(text)
