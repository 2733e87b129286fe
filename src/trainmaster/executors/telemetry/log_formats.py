"""What single lines of a log say: the formats of well-known programs, and prints of well-known names.

The formats are those that the programs' own sources print; `tests/unit/executors/telemetry/logs/` names them.
Nothing here raises, and no pattern looks back again and again: a line is bounded, so the work is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

from trainmaster.dataclass import dataclass
from trainmaster.executors.telemetry.metrics import Metrics
from trainmaster.lazy import regex
from trainmaster.spec.metric_names import RESULTS

NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)"

_SCORES = rf"{RESULTS}|lr|learning[_ ]rate|grad_norm"
_SCORE_NAME = rf"(?:[a-z]\w*[_/])?(?:{_SCORES})"
_NAME = rf"{_SCORE_NAME}|(?:train|val|valid|validation|dev|test|eval)_\w+"


def _pair(name: str) -> re.Pattern[str]:
    return regex(
        r"(?<![\w./@-])(?:(?P<of>train|training|val|valid|validation|dev|test|eval|best)[ -])?"
        rf"(?P<key>{name}|(?:examples|samples|images|tokens|steps)/s(?:ec)?)"
        rf"(?P<sep>\s*[:=]\s*|\s+)(?P<array>\[\s?)?(?P<value>{NUMBER})(?P<percent>\s?%)?"
        r"(?!\w|[:/.,-]\d)(?(array)\s?\])",
        re.I,
    )


_PAIR = _pair(_NAME)
_KNOWN_PAIR = _pair(rf"{_NAME}|loss_(?!scale)\w+")
_IS_SCORE = regex(_SCORE_NAME, re.I)
_COUNTER = regex(
    r"(?<![\w./@-])(?P<key>epoch|global[_ ]step|step|iteration|iter)(?:\(train\))?\s*(?:[:=#]\s*)?"
    r"(?:[\[(]\s*)?(?P<value>\d{1,15})(?:(?:\s*/\s*|\s+of\s+)(?P<of>\d{1,15}))?(?!\w|\.\d)",
    re.I,
)
_WORD = regex(r"[^\W\d_]{2,}")
_IS_RESULT = regex(rf"(?:[a-z]\w*[_/])?(?:{RESULTS})|\w+/s", re.I)
# What scripts are given, for whatever data: "eval_interval = 250", "train_batch_size=8", "min_lr = 1e-4".
_IS_SETTING = regex(
    r"(?:\w*_)?(?:lr|learning[_ ]rate|max_grad_norm|interval|every|freq|frequency|iters?|steps?|epochs|batch|"
    r"batches|size|split|ratio|fraction|seed|workers|samples|length|delay|dir|path|file|only)",
    re.I,
)
_ANY_NAME = regex(r"(?<![\w.@/-])[A-Za-z_][\w.@/-]*['\"]?\s?[=:](?!//)")
_COUNTERS = frozenset({"epoch", "step", "global_step", "iteration", "iter"})
#: So many names beside the known ones are the options of a script.
MOST_UNKNOWN = 3
_SUBSETS = {"training": "train", "valid": "val", "validation": "val"}


def number(text: str, percent: str = "") -> float | int:
    """What `NUMBER` has matched; ``98%`` is 0.98."""
    if percent.strip():
        return float(text) / 100
    return int(text) if text.lstrip("+-").isdigit() and len(text) < 19 else float(text)


def _score(match: re.Match[str]) -> tuple[str, float | int]:
    key = re.sub(r"\s", "_", match["key"].lower()).replace("/sec", "/s")
    if subset := (match["of"] or "").lower():
        key = f"{_SUBSETS.get(subset, subset)}_{key}"
    return key, number(match["value"], match["percent"] or "")


def is_configuration(text: str, names: Iterable[str]) -> bool:
    """Whether a line that says neither step nor epoch has options in it, and no metrics.

    >>> is_configuration("{'num_workers': 4, 'top_k': -1, 'n_layer': 2, 'seed': 3, 'lr': 0.1}", ["lr"])
    True
    >>> is_configuration("eval_interval = 250 # keep frequent", ["eval_interval"])
    True
    >>> is_configuration("val_dice=0.8 time=3.5", ["val_dice"])
    False

    Args:
        text: the line.
        names: the known ones in it.
    """
    if any(_IS_RESULT.fullmatch(name) for name in names):
        return False
    told = [name for name in names if not _IS_SETTING.fullmatch(name)]
    return not told or len(_ANY_NAME.findall(text)) - len(told) > MOST_UNKNOWN


def prints(text: str) -> Metrics:
    """Pairs such as ``Epoch [3/10], Loss: 0.31`` or ``iter 250: train loss 2.42, val loss 2.44``."""
    row: Metrics = {}
    vague: Metrics = {}
    clear = False
    spans: list[tuple[int, int]] = []
    vague_spans: list[tuple[int, int]] = []
    for match in _PAIR.finditer(text):
        # "a loss 3 times as high" is prose; "loss: 3" and "loss 3.0" are not
        separated = not match["sep"].isspace()
        is_vague = not separated and match["value"].isdigit()
        key, value = _score(match)
        (vague if is_vague else row)[key] = value
        (vague_spans if is_vague else spans).append(match.span())
        clear = clear or separated
    if not row and not vague:
        return {}
    counters: Metrics = {}
    for match in _COUNTER.finditer(text):
        name = match["key"].lower()
        key = "epoch" if name == "epoch" else "step"
        if key not in counters or name.startswith("global"):
            counters[key] = int(match["value"])
        spans.append(match.span())
    # "step 1 loss 2" and nothing else is no prose, either
    if vague and counters and not re.search(r"\w", _without(text, spans + vague_spans)):
        return counters | vague | row
    if not row or "Namespace(" in text or (not counters and is_configuration(text, row)):
        return {}
    most_words = len(spans) + 1 if len(spans) > 1 else 0
    if not clear and len(_WORD.findall(_without(text, spans))) > most_words:
        return {}  # only "name number": then the line must be about little else
    return counters | row


_BARE = regex(
    r"\W*(?:step|iteration|iter)\s*(?:[:=#]\s*)?(?:[\[(]\s*)?"
    r"(?P<step>\d{1,15})(?:\s*/\s*|\s+of\s+)(?P<of>\d{1,15})\W*",
    re.I,
)
#: Fewer are taken to be the parts of a script, as in "Step 1/3".
_LEAST_STEPS = 20


def counts(text: str) -> bool:
    """Whether a line may say how many of something there are."""
    return "/" in text or " of " in text


def bare_count(text: str) -> Metrics:
    """Of a line that counts steps and says nothing else.

    >>> bare_count("step 12/300"), bare_count("[iteration 12 of 300]"), bare_count("Step 1/3")
    ({'step': 12}, {'step': 12}, {})
    >>> bare_count("Step 12/300 : RUN make")
    {}
    """
    match = _BARE.fullmatch(text)
    if not match or not int(match["step"]) <= int(match["of"]) >= _LEAST_STEPS:
        return {}
    return {"step": int(match["step"])}


_NUMBERED = regex(
    rf"(?P<key>global_step|step|iteration|iter)=(?P<step>\d{{1,15}})((?:[,;]?\s+[a-z_]\w*={NUMBER})+)", re.I
)
_NUMBERED_PAIR = regex(rf"([a-z_]\w*)=({NUMBER})", re.I)


def numbered(text: str) -> Metrics:
    """Of a line that is a step and a few other names with numbers, whatever these are.

    >>> numbered("step=7 pi=3.14"), numbered("step=7"), numbered("step=1 in_size=3 b=4 c=5 d=6")
    ({'step': 7, 'pi': 3.14}, {}, {})
    """
    match = _NUMBERED.fullmatch(text)
    pairs = {name: number(value) for name, value in _NUMBERED_PAIR.findall(match[3])} if match else {}
    if match is None or len(pairs) > MOST_UNKNOWN:
        return {}
    return {"step": int(match["step"]), **pairs}


def counted_of(text: str) -> dict[str, int]:
    """How many epochs and steps a line that `prints` has read says that there are.

    >>> counted_of("Epoch [1/5], Step [100/600], Loss: 0.31")
    {'epoch': 5, 'step': 600}
    """
    if not counts(text):
        return {}
    told = {match["key"].lower(): match for match in _COUNTER.finditer(text) if match["of"]}
    pairs = (("epoch" if key == "epoch" else "step", match) for key, match in told.items())
    return {key: int(match["of"]) for key, match in pairs if 0 < int(match["value"] or 0) <= int(match["of"])}


_TRAINER_TOTAL = regex(r"(Num Epochs|Total optimization steps) = ([\d,]{1,15})$")


def trainer_totals(text: str) -> dict[str, int]:
    """What Hugging Face's Trainer says as it begins.

    >>> trainer_totals("[INFO|trainer.py:2128] 2024-01-05 10:00:00,000 >>   Total optimization steps = 1,200")
    {'step': 1200}
    """
    match = _TRAINER_TOTAL.search(text)
    if not match or not (digits := match[2].replace(",", "")):
        return {}
    return {"epoch" if match[1] == "Num Epochs" else "step": int(digits)}


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + " " + text[end:]
    return text


_DICT_PAIR = regex(rf"""['"]([A-Za-z_][\w/@.-]*)['"]:\s*['"]?({NUMBER})['"]?\s*(?=[,}}])""", re.I)


def dictionary(text: str) -> Metrics:
    """A printed dictionary, unless none of its names is well known, or they are options."""
    pairs: Metrics = {key: number(value) for key, value in _DICT_PAIR.findall(text)}
    known = [key for key in pairs if _PAIR.match(f"{key}=0")]
    if not known or (not pairs.keys() & _COUNTERS and is_configuration(text, known)):
        return {}
    return pairs


def _scores(text: str) -> Metrics:
    """Well-known names in the rest of a line that is known to be about training."""
    return dict(_score(match) for match in _KNOWN_PAIR.finditer(text))


_RICH_PAIR = regex(rf"(?<!\S)([A-Za-z_][\w/@.-]*): ({NUMBER})(?!\S)", re.I)


def _postfix(text: str) -> Metrics:
    """All names after Lightning's rich bar."""
    return {key: number(value) for key, value in _RICH_PAIR.findall(text) if key != "v_num"}


@dataclass(frozen=True, slots=True)
class InEpoch:
    """A format whose lines say how much of an epoch is done.

    Attributes:
        mark: stands in each such line; looking for it first is much faster.
        pattern: with groups ``epoch``, ``done``, ``total`` and perhaps ``percent``.
        first: number of the first epoch.
        unit: what is done, and makes up the total.
        pairs: finds the metrics after the match.
    """

    mark: str
    pattern: re.Pattern[str]
    first: int
    unit: Literal["step", "examples"] = "step"
    pairs: Callable[[str], Metrics] = _scores


def _in_epoch(mark: str, pattern: str, first: int, **more: object) -> InEpoch:
    """``EPOCH``, ``DONE`` and ``TOTAL`` stand for the groups."""
    pattern = pattern.replace("EPOCH", r"(?P<epoch>\d{1,6})")
    pattern = pattern.replace("DONE", r" *(?P<done>\d{1,12})").replace("TOTAL", r" *(?P<total>\d{1,12})")
    return InEpoch(mark, regex(pattern), first, **more)  # type: ignore[arg-type]


IN_EPOCH = (
    # PyTorch's MNIST example; of several processes in one log (Hogwild) each begins with its id and a tab
    _in_epoch(
        "Train Epoch: ",
        r"(?<!\d\t)Train Epoch: EPOCH \[DONE/TOTAL \( *(?P<percent>\d{1,3})(?:\.\d+)?%\)\]",
        1,
        unit="examples",
    ),
    # PyTorch's ImageNet example and torchvision's references, and what follows them
    _in_epoch("Epoch: [", r"Epoch: \[EPOCH\] *\[DONE/TOTAL\]", 0),
    # OpenMMLab: mmcv and mmengine
    _in_epoch("Epoch", r"Epoch(?:\(train\) | )\s*\[EPOCH\]\[DONE/TOTAL\]", 1),
    # PyTorch's word language model and transformer tutorial
    _in_epoch(" batches |", r"\| epoch +EPOCH \|DONE/TOTAL batches \|", 1),
    # timm
    _in_epoch("Train: ", r"(?<![\w.-])Train: EPOCH \[DONE/TOTAL \( *\d{1,3}%\)\]", 0),
    # PyTorch's DDP tutorial, at the begin of each epoch
    _in_epoch("| Batchsize: ", r"\[GPU\d+\] Epoch EPOCH \| Batchsize: \d+ \| Steps:(?P<done>)TOTAL(?!\S)", 0),
    # fairseq, where it does not say num_updates
    _in_epoch(" / ", r"\| epoch EPOCH:? DONE / TOTAL ", 1),
    # Lightning's rich bar
    _in_epoch(
        "•",
        r"^Epoch EPOCH(?:/(?P<last>\d{1,6}))? [━╸╺╴╶─ -]*"
        r"(?P<done>\d{1,12})/TOTAL \d+:\d\d:\d\d • \S+ [\d.]+it/s",
        0,
        pairs=_postfix,
    ),
)

_FAIRSEQ_EPOCH = regex(r'\bepoch(?:": | )(\d{1,6})')
_FAIRSEQ_PAIR = regex(
    rf"""[,|{{ ] ?"?([a-z]\w*)"?(?:=|: ?| )"?({NUMBER})%?"?(?: \({NUMBER}\))?(?=\s*(?:[,|}}\]]|$))"""
)
_ROUND = regex(r"(?:\[\d\d:\d\d:\d\d\] )?\[(\d{1,12})\]:?\s+(?=\S)")
_ROUND_PAIR = regex(
    rf"([^\s':]{{1,100}})(?:'s ([^\t:]{{1,100}}))?: ?({NUMBER})(?: ?\+ ?{NUMBER})?(?:\s+|$)", re.I
)
_LIGHTGBM = regex(
    rf"Iteration:(\d{{1,12}}), (\w+) ([^:]{{1,100}}) : ({NUMBER})$"
    r"|\d+\.\d+ seconds elapsed, finished iteration (\d{1,12})$",
    re.I,
)
_ACCELERATE = regex(r"epoch (\d{1,6}): (\{[^{}]*\})$", re.I)
_DETECTRON = regex(r"\biter: (\d{1,12}) +total_loss: ")
_MNIST_TEST = regex(
    rf"Test set: Average loss: ({NUMBER}), Accuracy: (\d{{1,12}})/(\d{{1,12}}) \( *\d{{1,3}}%\)", re.I
)
_TRIAL = regex(rf"Trial (\d{{1,12}}) finished with value: ({NUMBER})(?=\s|\.?$)", re.I)
_EVALUATION = regex(r"\W*(Test|Val|Eval)[a-z]*: +\[ *\d+/ *\d+\]")
# A row of a table, as Lightning's and Stable-Baselines3's.
_ROW = regex(rf"^[|│]\s+([a-z]\w*(?:/\w+)*)\s+[|│]\s+({NUMBER})\s+[|│]$", re.I)
_AVERAGE = regex(rf"(?<![\w@])([A-Za-z][\w@]*):?\s+{NUMBER}\s+\(\s*({NUMBER})\)", re.I)


def fairseq(text: str) -> Metrics:
    """All of its formats: JSON, simple, and the bar; ``num_updates`` are steps in all."""
    pairs = {key.removeprefix("train_"): (key, value) for key, value in _FAIRSEQ_PAIR.findall(text)}
    is_validation = "valid on '" in text
    row: Metrics = {}
    if epoch := _FAIRSEQ_EPOCH.search(text):
        row["epoch"] = int(epoch[1])
    updates = pairs.get("num_updates") or pairs.get("valid_num_updates")
    if updates and updates[1].isdigit() and len(updates[1]) < 16:
        row["step"] = int(updates[1])
    for key, value in pairs.values():
        name = f"valid_{key}" if is_validation and not key.startswith("valid_") else key
        if _IS_SCORE.fullmatch(key.removeprefix("train_").removeprefix("valid_")):
            row[name] = number(value)
    return row


def boosting(text: str) -> Metrics | None:
    """A round of XGBoost or LightGBM; None if it is none."""
    if text.startswith("[LightGBM] [Info] "):
        found = _LIGHTGBM.match(text, len("[LightGBM] [Info] "))
        if not found:
            return None
        if found[5]:
            return {"step": int(found[5])}
        return {"step": int(found[1]), _set_metric(found[2], found[3]): number(found[4])}
    start = _ROUND.match(text)
    if not start:
        return None
    row: Metrics = {"step": int(start[1])}
    at = start.end()
    while at < len(text):
        pair = _ROUND_PAIR.match(text, at)
        if not pair or not (pair[2] or "-" in pair[1]):
            return None
        row[_set_metric(pair[1], pair[2]) if pair[2] else pair[1].replace("-", "_")] = number(pair[3])
        at = pair.end()
    return row


def _set_metric(data: str, metric: str) -> str:
    return re.sub(r"[\s-]", "_", f"{_SUBSETS.get(data, data)}_{metric.strip()}")


def other(text: str) -> Metrics | None:
    """Formats that say nothing of epochs' lengths; None if it is none of them."""
    if "num_updates" in text:
        return fairseq(text)
    if ": {" in text and (match := _ACCELERATE.search(text)):
        pairs = dictionary(match[2])
        return {"epoch": int(match[1]), **pairs} if pairs else {}
    if "total_loss: " in text and (match := _DETECTRON.search(text)):
        return {"step": int(match[1]), **_scores(text)}
    if "Test set: " in text and (match := _MNIST_TEST.search(text)):
        return {"test_loss": number(match[1]), "test_accuracy": int(match[2]) / max(1, int(match[3]))}
    if text[:1] in "|│" and (match := _ROW.match(text)):
        if match[1] == "total_timesteps" and match[2].isdigit():
            return {"step": int(match[2])}
        return {match[1]: number(match[2])} if _PAIR.match(f"{match[1]}=0") else {}
    if " finished with value: " in text and (match := _TRIAL.search(text)):
        return {"step": int(match[1]), "value": number(match[2])}  # Optuna
    if "/" in text and (match := _EVALUATION.match(text)):
        subset = match[1].lower()
        return {
            f"{subset}_{name.lower()}": number(average)
            for name, average in _AVERAGE.findall(text)
            if _IS_SCORE.fullmatch(name)
        }
    return None
