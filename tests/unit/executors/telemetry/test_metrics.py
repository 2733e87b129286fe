"""Log lines here are real output of the tools, found in their issue trackers or written by their code."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.executors.telemetry import metrics
from trainmaster.executors.telemetry.log_metrics import LogMetrics
from trainmaster.executors.telemetry.metrics import (
    CHUNK,
    MAX_KEYS,
    MetricsReader,
    NotFinite,
    json_safe,
)
from trainmaster.spec.errors import UsageError

# --- the metrics file ---


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def append(path, text):
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_rows_come_as_they_are_written(path):
    reader = MetricsReader(path)
    assert reader.read() == []
    append(path, '{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert reader.read() == [{"step": 1, "loss": 0.5}]
    assert reader.read() == []
    append(path, 'ss": 0.25}\n')
    assert reader.read() == [{"step": 2, "loss": 0.25}]
    assert reader.last == {"step": 2, "loss": 0.25}
    assert reader.skipped == 0


def test_a_new_reader_goes_on_at_the_offset(path):
    append(path, '{"step": 1}\n{"step": 2')
    first = MetricsReader(path)
    first.read()
    append(path, "}\n")
    assert MetricsReader(path, first.offset).read() == [{"step": 2}]


def test_what_is_no_row_is_skipped_and_counted(path):
    append(
        path, b'hello\n[1, 2]\n3\n{"a": [1]}\n{"a"\n\xff\xfe\n\n  \n{"ok": true}\r\n' + b"[" * 5000 + b"\n"
    )
    reader = MetricsReader(path)
    assert reader.read() == [{"ok": True}]
    assert reader.skipped == 7


def test_only_plain_values_are_kept(path):
    append(path, json.dumps({"a": 1, "b": None, "c": {"d": 1}, "e": "x" * 999, "f" * 999: 1}) + "\n")
    (row,) = MetricsReader(path).read()
    assert row == {"a": 1, "e": "x" * 200}


def test_huge_integers(path):
    append(path, f'{{"a": {1 << 64}, "b": -1{"0" * 400}, "c": {(1 << 63) - 1}}}\n{{"d": {"9" * 5000}}}\n')
    reader = MetricsReader(path)
    assert reader.read() == [{"a": float(1 << 64), "b": -math.inf, "c": (1 << 63) - 1}]
    assert reader.skipped == 1


def test_not_a_number_is_read_and_can_be_written_as_json(path):
    append(path, '{"loss": NaN, "a": Infinity, "b": -Infinity, "step": 3}\n')
    (row,) = MetricsReader(path).read()
    assert math.isnan(row["loss"])
    assert json_safe(row) == {"loss": None, "a": None, "b": None, "step": 3}
    assert json.dumps(json_safe(row), allow_nan=False)


def test_a_file_begun_anew_is_read_from_its_start(path):
    append(path, '{"step": 100}\n{"step": 200}\n')
    reader = MetricsReader(path)
    reader.read()
    path.write_text('{"step": 1}\n')
    assert reader.read() == [{"step": 1}]


def test_the_last_line_of_a_finished_file_needs_no_newline(path):
    append(path, '{"step": 1}\n{"step": 2}')
    reader = MetricsReader(path)
    assert reader.read(final=True) == [{"step": 1}, {"step": 2}]
    assert reader.read(final=True) == []


def test_a_large_file_is_read_in_pieces(path):
    line = b'{"step": 1, "loss": 0.123456789}\n'
    append(path, line * 100_000)
    reader = MetricsReader(path)
    rows, reads = 0, 0
    while found := reader.read():
        rows, reads = rows + len(found), reads + 1
        assert len(found) <= CHUNK // len(line)
    assert rows == 100_000
    assert reads >= 3


def test_an_endless_line_is_skipped_without_holding_it(path):
    append(path, b'{"step": 1}\n' + b"x" * (3 * CHUNK))
    reader = MetricsReader(path)
    assert reader.read() == [{"step": 1}]
    assert reader.read() == []
    append(path, b'yz\n{"step": 2}\n')
    assert reader.read() == [{"step": 2}]
    assert reader.skipped == 1


def test_junk_of_any_length_does_not_look_like_the_end(path, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK", 1000)
    append(path, b"junk\n" * 1000 + b'{"step": 9}\n')
    assert MetricsReader(path).read() == [{"step": 9}]


def test_names_are_bounded(path):
    for step in range(3):
        append(path, json.dumps({f"k{step}_{i}": i for i in range(MAX_KEYS - 10)}) + "\n")
    append(path, '{"k0_0": -1, "new": 1}\n')
    reader = MetricsReader(path)
    reader.read()
    assert len(reader.last) == MAX_KEYS
    assert reader.last["k0_0"] == -1
    assert "new" not in reader.last


def test_what_cannot_be_read_is_named(path, tmp_path):
    path.mkdir()
    reader = MetricsReader(path)
    assert reader.read() == []
    assert "not a regular file" in reader.problem
    os.mkfifo(tmp_path / "pipe")
    reader = MetricsReader(tmp_path / "pipe")
    assert reader.read() == []
    assert "not a regular file" in reader.problem
    assert MetricsReader(tmp_path / "nothing").problem == ""


@given(st.lists(st.integers(0, 200), max_size=8), st.binary(max_size=30))
def test_any_cut_of_the_file_gives_the_same_rows(tmp_path_factory, cuts, junk):
    junk = junk.replace(b"\n", b"").replace(b"\r", b"")
    data = b'{"step": 1}\n' + junk + b'\n{"step": 2, "loss": 0.5}\n\n{"step": 3}\n'
    path = tmp_path_factory.mktemp("cuts") / "m"
    reader, rows, done = MetricsReader(path), [], 0
    for cut in [*sorted(cuts), len(data)]:
        append(path, data[done : max(cut, done)])
        done = max(cut, done)
        rows += reader.read()
    whole = MetricsReader(path)
    assert rows == whole.read()
    assert (reader.last, reader.skipped, reader.offset) == (whole.last, whole.skipped, len(data))


# --- logs ---


def rows(text, pattern=None):
    log = LogMetrics(pattern)
    return log.feed(text.encode() if isinstance(text, str) else text) + log.finish()


KERAS_2 = (
    "Epoch 1/2\n"
    "  1/938 [..............................] - ETA: 5:20 - loss: 2.3511 - accuracy: 0.1250\b\b\b\b\b\b\r"
    " 50/938 [>.............................] - ETA: 5s - loss: 1.4512 - accuracy: 0.5700\r"
    "938/938 [==============================] - 5s 5ms/step - loss: 0.3456 - accuracy: 0.8710 "
    "- val_loss: 0.3001 - val_accuracy: 0.8999\n"
    "Epoch 2/2\n"
    "938/938 [==============================] - 5s 5ms/step - loss: 1.2000e-04 - accuracy: 0.9100\n"
    "313/313 [==============================] - 0s 1ms/step - loss: 0.5000 - accuracy: 0.9000\n"
)
# as keras/src/utils/progbar.py writes it to a terminal
KERAS_3 = (
    "Epoch 3/10\n"
    "\x1b[1m  1/938\x1b[0m \x1b[37m━━━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m2:20\x1b[0m 150ms/step "
    "- accuracy: 0.0625 - loss: 2.3\b\b\b\b\b\b\r"
    "\x1b[1m938/938\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m 3ms/step "
    "- accuracy: 0.8700 - loss: 0.4500 - learning_rate: 0.0010    \n"
)
KERAS_VERBOSE_2 = (
    "Epoch 1/5\n938/938 - 2s - 3ms/step - accuracy: 0.8700 - loss: nan\n"
    "Epoch 2/5\n938/938 - 2s - loss: 0.2913 - accuracy: 0.9150 - 2s/epoch - 2ms/step\n"
)


def test_keras_2():
    found = rows(KERAS_2)
    assert found[0] == {"epoch": 1, "step": 1, "loss": 2.3511, "accuracy": 0.125}
    assert found[1] == {"epoch": 1, "step": 50, "loss": 1.4512, "accuracy": 0.57}
    assert found[2]["step"] == 938
    assert found[2]["val_accuracy"] == 0.8999
    assert found[3] == {"epoch": 2, "step": 1876, "loss": 1.2e-4, "accuracy": 0.91}
    assert found[4] == {"loss": 0.5, "accuracy": 0.9}, "evaluate() is no step"
    assert len(found) == 5


def test_keras_3():
    assert rows(KERAS_3) == [
        {"epoch": 3, "step": 1877, "accuracy": 0.0625, "loss": 2.3},
        {"epoch": 3, "step": 2814, "accuracy": 0.87, "loss": 0.45, "learning_rate": 0.001},
    ]


def test_keras_without_a_bar():
    first, second = rows(KERAS_VERBOSE_2)
    assert math.isnan(first["loss"])
    assert second == {"epoch": 2, "step": 1876, "loss": 0.2913, "accuracy": 0.915}


def test_keras_that_does_not_know_its_length():
    text = "Epoch 1/2\n     50/Unknown \x1b[1m2s\x1b[0m 3ms/step - accuracy: 0.8 - loss: 0.5\n"
    assert rows(text) == [{"epoch": 1, "accuracy": 0.8, "loss": 0.5}]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Epoch 0:  22%|██▏       | 4/18 [00:17<01:02,  4.47s/it, loss=10.072, v_num=193315]",
            {"epoch": 0, "step": 4, "loss": 10.072},
        ),
        (
            "Epoch 2:  45%|████▌ | 45/100 [00:05<00:06,  8.9it/s, v_num=1, train_loss=0.3]",
            {"epoch": 2, "step": 245, "train_loss": 0.3},
        ),
        ("Epoch 0:   0%|          | 0/18 [00:00<?, ?it/s] ", {"epoch": 0, "step": 0}),
        (
            "Epoch 0:   2%|▏         | 3744/150000 [3:12:36<125:24:04,  0.32it/s, v_num=35a4, ...]   ",
            {"epoch": 0, "step": 3744},
        ),
        (
            "Epoch 0:  34% 1020/3000 [01:04<02:05, 15.73it/s, loss=1.2, v_num=1024]",
            {"epoch": 0, "step": 1020, "loss": 1.2},
        ),
        (" 17%|█▋        | 134/782 [00:19<01:21,  7.98it/s, loss=0.375 ]", {"step": 134, "loss": 0.375}),
        ("100%|##########| 100/100 [00:05<00:00, 8.90it/s, train/acc=1, loss=nan]", ...),
        ("45it [00:05,  8.90it/s, loss=0.31]", {"step": 45, "loss": 0.31}),
        (
            "Epoch 1/10: 100%|██████████| 32/32 [00:01<00:00, 20.1it/s, loss=0.9]",
            {"step": 32, "epoch": 1, "loss": 0.9},
        ),
        (
            "Epoch 2/10:  50%|█████     | 16/32 [00:01<00:00, 20.1it/s, loss=0.8]",
            {"step": 48, "epoch": 2, "loss": 0.8},
        ),
    ],
)
def test_progress_bars(line, expected):
    (found,) = rows(line)
    if expected is ...:
        assert (found["step"], found["train/acc"], math.isnan(found["loss"])) == (100, 1, True)
    else:
        assert found == expected


@pytest.mark.parametrize(
    "line",
    [
        "Validation DataLoader 0:  46%|████████      | 73/157 [00:02<00:02, 37.48it/s]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 12.1it/s]",
        "Downloading data: 100%|██████████| 170M/170M [00:05<00:00, 30.1MB/s]",
        "100%|██████████| 782/782 [03:50<00:00,  2.73it/s]",
        "Map: 100%|██████████| 1000/1000 [00:00<00:00, 9000.1 examples/s]",
        "Training: 0it [00:00, ?it/s]",
    ],
)
def test_bars_that_do_not_train_are_no_steps(line):
    assert rows(line) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 120 loss 0.4", {"step": 120, "loss": 0.4}),
        ("loss=0.4 accuracy: 0.93", {"loss": 0.4, "accuracy": 0.93}),
        ("epoch 3: val_acc 0.91", {"epoch": 3, "val_acc": 0.91}),
        # PyTorch's examples: MNIST and ImageNet
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.302585", {"epoch": 1, "examples": 640, "loss": 2.302585}),
        (
            "Test set: Average loss: 0.0483, Accuracy: 9843/10000 (98%)",
            {"test_loss": 0.0483, "test_accuracy": 0.9843},
        ),
        (
            "Epoch: [0][  10/5005]\tTime  0.512 (  1.020)\tData  0.000 (  0.500)\t"
            "Loss 6.9871e+00 (7.0021e+00)\tAcc@1   0.00 (  0.10)",
            {"epoch": 0, "step": 10, "loss": 6.9871, "acc@1": 0.0},
        ),
        ("Epoch [3/10], Step [100/600], Loss: 0.2345", {"epoch": 3, "step": 100, "loss": 0.2345}),
        # nanoGPT
        ("iter 250: loss 2.4631, time 38.45ms, mfu 1.23%", {"step": 250, "loss": 2.4631}),
        (
            "step 250: train loss 2.4240, val loss 2.4460",
            {"step": 250, "train_loss": 2.424, "val_loss": 2.446},
        ),
        # Hugging Face's Trainer
        (
            "{'loss': 0.4512, 'grad_norm': 1.25, 'learning_rate': 4.5e-05, 'epoch': 0.32}",
            {"loss": 0.4512, "grad_norm": 1.25, "learning_rate": 4.5e-05, "epoch": 0.32},
        ),
        ("{'eval_loss': '0.3', 'eval_runtime': '1.5'}", {"eval_loss": 0.3, "eval_runtime": 1.5}),
        ('{"step": 7, "loss": 0.5}', {"step": 7, "loss": 0.5}),
        # XGBoost
        (
            "[10]\ttrain-rmse:0.41123\ttest-rmse:0.52001",
            {"step": 10, "train_rmse": 0.41123, "test_rmse": 0.52001},
        ),
        ("[2026-11-20 10:00:00] INFO train: step 120 loss 0.4", {"step": 120, "loss": 0.4}),
        ("loss 0.4", {"loss": 0.4}),
        ("val_dice=0.8 lr=0.1 time=3 a=1", {"val_dice": 0.8, "lr": 0.1}),
        ("iteration: 12, reward 3.5", {"step": 12, "reward": 3.5}),
        ("Iter 12: a=1 b=2 c=3 d=4 lr=0.1", {"step": 12, "lr": 0.1}),
        ("valid_iou: 0.5 validation_x = 2 dev_y=3", {"valid_iou": 0.5, "validation_x": 2, "dev_y": 3}),
        (f"step {'9' * 3000} loss: 0.4 lr: {'1' * 900}", {"loss": 0.4, "lr": math.inf}),
        ("Val Loss: 0.4 Acc: 98.5%", {"val_loss": 0.4, "acc": 0.985}),
        ("Training loss: 1.5e-3; lr = 0.01", {"train_loss": 1.5e-3, "lr": 0.01}),
        ("Best accuracy: 0.93", {"best_accuracy": 0.93}),
        ("epoch 1 examples/sec: 1520.5 loss: inf", {"epoch": 1, "examples/s": 1520.5, "loss": math.inf}),
        ("global_step 500 step 20 loss=2", {"step": 500, "loss": 2}),
        ("step 20 global_step 500 loss=2", {"step": 500, "loss": 2}),
        ("\x1b[32mloss: 0.25\x1b[0m", {"loss": 0.25}),
        ("step 1 loss 2", {"step": 1, "loss": 2}),
        ("epoch 2, loss 2 | accuracy 0.5", {"epoch": 2, "loss": 2, "accuracy": 0.5}),
        ("epoch  3  accuracy 0.9611  loss 0.1200", {"epoch": 3, "accuracy": 0.9611, "loss": 0.12}),
    ],
)
def test_prints(line, expected):
    assert rows(line) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch 3/10",
        "Step 1: download the data",
        "Step 3/10 : RUN pip install torch",
        "step 12",
        "The loss of 3 parts is a loss 3 times as high as in 2020.",
        "loss 3",
        "step 3 loss 2 times",
        "In step 3 of the method an accuracy 0.95 was the best that anybody had reached",
        "We lost 0.5 points; the loss was 2x as high, accuracy 1st",
        "Collecting accuracy-0.5.tar.gz from /tmp/loss/0.5",
        "see https://example.com/loss=x and lr.py:12",
        "loss: 12:30:05",
        "loss: 2026-11-20",
        "accuracy: 9843/10000",
        "version of loss: 1.2.3",
        "gloss: 3, flr: 2",
        "Loaded images: 60000, training examples: 50000",
        "loss: tensor(0.3)",
        "Epoch 1: val_loss improved from inf to 0.34102, saving model to best.keras",
        "3/10 tests - passed: 5",
        "{'name': 'x', 'size': 3}",
        "{'lr': 0.1, 'momentum': 0.9}",
        "Namespace(epoch=90, lr=0.1, test_loss=1)",
        "TrainConfig(lr=0.1, eval_iters=5, val_x=1, a=1, b=2, c=3, d=4)",
        "train_batch_size: 32",
        "--lr=0.1 --epochs=3 --test_size=0.2",
        "error: 404, precision=16, epochs: 20",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
    ],
)
def test_prose_is_not_taken_for_metrics(line):
    assert rows(line) == []


def test_the_users_pattern():
    pattern = r"after (?P<step>\d+): (?P<loss>\S+) (?P<acc>\S+)(?: (?P<more>\S+))?"
    assert rows("x\nafter 120: 0.4, (97.5%)\nloss=3\n", pattern) == [{"step": 120, "loss": 0.4}]
    assert rows("after 120: 0.4, 97.5% word\n", pattern) == [{"step": 120, "loss": 0.4, "acc": 0.975}]
    assert rows("after 1: x y\n", pattern) == [{"step": 1}]


@pytest.mark.parametrize(
    ("pattern", "message"), [("(?P<loss>", "metrics.pattern: "), (r"loss (\S+)", "names no metric")]
)
def test_patterns_that_cannot_work(pattern, message):
    with pytest.raises(UsageError, match=message):
        LogMetrics(pattern)


def test_last_values_and_bounded_names():
    log = LogMetrics(r"(?P<loss>\d+)")
    log.feed(b"1\n2\n")
    assert log.last == {"loss": 2}
    log = LogMetrics()
    for i in range(2 * MAX_KEYS):
        log.feed(f"val_{i}: 1\n".encode())
    assert len(log.last) == MAX_KEYS


def test_endless_lines_use_no_memory():
    log = LogMetrics()
    for _ in range(100):
        assert log.feed(b"loss: 1 " * 10_000) == []
    assert len(log._line) <= 4096
    assert log.feed(b"\nloss: 2\n")[-1] == {"loss": 2}


def test_other_encodings():
    assert rows("Verlust für Schüler loss: 0.5\n".encode("latin-1")) == [{"loss": 0.5}]
    assert rows(b"\xff\xfe\x00loss: 0.5\n") == [{"loss": 0.5}]


SAMPLE = (
    KERAS_2 + KERAS_3 + "Epoch 2:  45%|████▌ | 45/100 [00:05<00:06,  8.9it/s, a=0.3]\r\nlr: 1\n"
).encode() + (b"\xff\xe2\x94\nloss: 3" + b" " * 5000 + b"loss: 4\nloss: 5")


@given(st.lists(st.integers(0, len(SAMPLE)), max_size=40))
def test_any_cut_of_the_log_gives_the_same_metrics(cuts):
    whole = LogMetrics()
    expected = whole.feed(SAMPLE) + whole.finish()
    log, found, done = LogMetrics(), [], 0
    for cut in [*sorted(cuts), len(SAMPLE)]:
        found += log.feed(SAMPLE[done:cut])
        done = cut
    found += log.finish()
    assert found == expected
    assert log.last == whole.last


@given(st.binary(max_size=300), st.text(max_size=300))
def test_nothing_in_a_log_raises(data, text):
    LogMetrics().feed(data + b"\n" + text.encode("utf-8", "surrogatepass") + b"\n")


@given(st.text(alphabet="loss_acep:=/ .0123456789e-+[]|%{}'\",\t", max_size=200))
def test_nothing_like_a_metric_raises(text):
    for row in rows(text):
        assert all(isinstance(value, (int, float)) for value in row.values())


@pytest.mark.timeout(60)  # a pattern that looks back takes minutes for one of these lines
@pytest.mark.parametrize(
    "part",
    [
        "a_",
        "val_",
        "loss ",
        "1",
        "1.",
        "|",
        "0%|",
        "val_a ",
        "[",
        "'a': 1, ",
        "x",
        " ",
        "━ ",
        "a-b:1\t",
        "a's b: ",
        "loss_",
        "acc@",
        ", a",
    ],
)
@pytest.mark.parametrize(
    "start",
    [
        "",
        "{",
        "Epoch 1",
        "Epoch 1/9 •",
        "Test: [1/2] loss ",
        "Train: 1 [",
        "[1]\t",
        "[LightGBM] [Info] Iteration:1, ",
        "num_updates ",
        "| epoch 1 | batches |",
        "epoch 1: {",
        "Trial 1 finished with value: ",
        "step",
        "loss step",
        "loss [1][Epoch",
    ],
)
def test_no_line_makes_a_pattern_look_back_again_and_again(start, part):
    rows((start + part * 4096)[:4096])
    rows((start + part * 4096)[:4094] + "•}")
    rows((start + part * 4096)[:4094] + "/}")


# --- what is lost ---


def test_which_metrics_are_not_finite_and_since_when():
    tested = NotFinite()
    assert tested.words == ""
    tested.add({"loss": math.nan})
    assert tested.words == "loss is nan"
    tested.add({"step": 4, "loss": 1.0, "z": math.inf, "y": math.nan, "x": math.nan, "text": "nan"})
    tested.add({"step": 5, "acc": -math.inf, "y": math.nan})
    told = "acc is -inf since step 5, z is inf since step 4, y is nan since step 4"
    assert tested.words == f"{told}, and 1 more metrics are not finite"
