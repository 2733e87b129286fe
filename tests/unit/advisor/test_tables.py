"""The files of ``predict``: what they may contain, and what is said about mistakes."""

import csv
import io
import json

import pytest

from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.advisor.model.tables import predict_tables, read_table
from trainmaster.cli.predict import predict
from trainmaster.spec.errors import UsageError

MEASURED = """\
job,sync,nodes,workers,parameter_servers,local_batch,latency_ms,nic_mbps,gradient_mb,step_time_s
a,allreduce,1,1,0,32,,,,0.20
a,allreduce,1,4,0,32,,,,0.22
a,allreduce,2.0,8.0,0,32,,,,0.30
b,ps-async,1,1,1,64,,,,0.5
b,ps-async,2,2,1,64,,,,0.26
"""
QUERY = """\
workers,sync,job,nodes,local_batch
16,allreduce,a,4,32

4,ps-async,b,4,64
1.0,allreduce,a,1,64
"""


@pytest.fixture
def files(tmp_path):
    def write(measured=MEASURED, query=QUERY):
        paths = tmp_path / "points.csv", tmp_path / "shapes.csv"
        for path, text in zip(paths, (measured, query), strict=True):
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return paths

    return write


def test_rows_come_back_in_order_with_their_cells_and_the_predictions(files, capsys):
    predict(*files())
    out = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert out.splitlines()[0] == "workers,sync,job,nodes,local_batch,step_time_s,lo_s,hi_s,bottleneck"
    assert [(r["job"], r["workers"], r["local_batch"]) for r in rows] == [
        ("a", "16", "32"),
        ("b", "4", "64"),
        ("a", "1", "64"),
    ]
    for row in rows:
        assert 0 < float(row["lo_s"]) < float(row["step_time_s"]) < float(row["hi_s"])
        assert row["bottleneck"].partition(":")[0]
    assert 0.25 < float(rows[0]["step_time_s"]) < 0.8
    assert 0.1 < float(rows[1]["step_time_s"]) < 0.2


def test_json_is_one_object_on_the_last_line(files, capsys):
    predict(*files(), as_json=True)
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["workers"] for row in answer["rows"]] == [16, 4, 1]
    assert all(isinstance(row["hi_s"], float) for row in answer["rows"])
    assert answer["unexplained"] == []
    for point in answer["next_measurements"]:
        assert set(point) == {"job", "workers", "nodes", "interval_now", "interval_then"}
        assert 1 < point["interval_then"] < point["interval_now"]


def test_the_next_point_crosses_the_network_and_is_as_large_as_it_may_be(files, capsys):
    measured = "sync,workers,nodes,local_batch,step_time_s\nallreduce,1,1,32,0.2\nallreduce,4,1,32,0.21\n"
    predict(*files(measured, "sync,workers,nodes,local_batch\nallreduce,64,16,32\n"))
    assert capsys.readouterr().err.startswith("measure 32 workers on 8 nodes next: ")
    predict(*files(measured, "sync,workers,nodes,local_batch\nallreduce,1,1,32\n"))
    assert capsys.readouterr().err == "", "that is known"


def test_output_file_is_what_would_be_printed(files, tmp_path, capsys):
    predict(*files())
    printed = capsys.readouterr().out
    predict(*files(), output=tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == printed
    assert capsys.readouterr().out == ""


def test_an_output_can_be_queried_again(files, tmp_path, capsys):
    predict(*files(), output=tmp_path / "out.csv")
    first = (tmp_path / "out.csv").read_text()
    predict(tmp_path / "points.csv", tmp_path / "out.csv")
    assert capsys.readouterr().out == first


def test_jobs_are_fitted_each_by_itself(files):
    alone = "\n".join(line for line in MEASURED.splitlines() if not line.startswith("b,")) + "\n"
    query = "\n".join(line for line in QUERY.splitlines() if ",b," not in line) + "\n"
    both = predict_tables(*files()).rows
    assert [both[0], both[2]] == list(predict_tables(*files(alone, query)).rows)


def test_files_without_a_job_column_hold_one_job(files):
    answer = predict_tables(
        *files("sync,workers,step_time_s\nallreduce,1,0.2\n", "sync,workers\nallreduce,2\n")
    )
    assert answer.rows[0]["step_time_s"] > 0


def test_a_byte_order_mark_spaces_and_windows_lines_are_fine(files):
    measured = b"\xef\xbb\xbf" + MEASURED.replace("\n", "\r\n").replace(",allreduce", ", allreduce ").encode()
    assert len(predict_tables(*files(measured)).rows) == 3


def test_ten_thousand_rows_are_predicted_together(files, monkeypatch):
    query = "job,sync,workers,nodes,local_batch\n" + "".join(
        f"a,allreduce,{i % 64 + 1},{i % 8 % (i % 64 + 1) + 1},{i % 500 + 1}\n" for i in range(10_000)
    )
    calls = []
    real = StepTimeModel.predict_columns
    monkeypatch.setattr(
        StepTimeModel, "predict_columns", lambda *given, **more: calls.append(1) or real(*given, **more)
    )
    assert len(predict_tables(*files(query=query)).rows) == 10_000
    assert 0 < len(calls) < 100, "not row by row"


def test_points_that_physics_cannot_explain_are_told(files, capsys):
    measured = "job,sync,workers,nodes,local_batch,step_time_s\n" + "".join(
        f"a,allreduce,{n},{n},{b},{9 if (n, b) == (4, 32) else 0.1 + b / 100 + n / 100}\n"
        for n in (1, 2, 4)
        for b in (16, 32, 64, 128)
    )
    predict(*files(measured, "job,sync,workers\na,allreduce,8\n"), as_json=True)
    captured = capsys.readouterr()
    assert "points.csv:11: not learnt: 9 s was measured" in captured.err
    (note,) = json.loads(captured.out)["unexplained"]
    assert note["where"].endswith("points.csv:11")
    assert note["expected_s"] < 1


@pytest.mark.parametrize(
    ("measured", "query", "message"),
    [
        ("", QUERY, r"points\.csv: is empty"),
        ("\n \n", QUERY, r"points\.csv: is empty"),
        (MEASURED, "", r"shapes\.csv: is empty"),
        (MEASURED.splitlines()[0], QUERY, r"points\.csv: has a header but no rows"),
        (MEASURED, "job,sync,workers\n", r"shapes\.csv: has a header but no rows"),
        (
            MEASURED.replace("workers", "worker"),
            QUERY,
            r"points\.csv:1: worker: unknown column; did you mean workers\?",
        ),
        (
            MEASURED.replace("nic_mbps", "colour"),
            QUERY,
            r"points\.csv:1: colour: unknown column; known are job, ",
        ),
        (MEASURED.replace("nodes", "workers"), QUERY, r"points\.csv:1: workers: this column is there twice"),
        (MEASURED.replace("job,sync", "sync"), QUERY, r"points\.csv:2: more cells than the header's 9"),
        (
            MEASURED.replace("0.22", "fast"),
            QUERY,
            r"points\.csv:3: step_time_s: found 'fast'; a number is needed",
        ),
        (
            MEASURED.replace("0.22", "-0.22"),
            QUERY,
            r"points\.csv:3: step_time_s: found '-0\.22'; more than zero",
        ),
        (MEASURED.replace("0.22", "0"), QUERY, r"points\.csv:3: step_time_s: found '0'; more than zero"),
        (MEASURED.replace("0.22", ""), QUERY, r"points\.csv:3: step_time_s: is empty; a number is needed"),
        (
            MEASURED.replace("0.22", "inf"),
            QUERY,
            r"points\.csv:3: step_time_s: found 'inf'; a number up to 1e\+12",
        ),
        (MEASURED.replace("0.22", "nan"), QUERY, r"points\.csv:3: step_time_s: found 'nan'; a number up to"),
        (
            MEASURED.replace("2.0,8.0", "2.5,8"),
            QUERY,
            r"points\.csv:4: nodes: found '2\.5'; a whole number from 1",
        ),
        (
            MEASURED.replace("1,4,0", "1,0,0"),
            QUERY,
            r"points\.csv:3: workers: found '0'; a whole number from 1",
        ),
        (MEASURED.replace("1,4,0", "1,,0"), QUERY, r"points\.csv:3: workers: is empty"),
        (MEASURED.replace("4,0,32", "4,-1,32"), QUERY, r"points\.csv:3: parameter_servers: found '-1'"),
        (
            MEASURED.replace("4,0,32,", "4,0,32,-5"),
            QUERY,
            r"points\.csv:3: latency_ms: found '-5'; zero or more",
        ),
        (
            MEASURED.replace("b,ps-async", "b,ring"),
            QUERY,
            r"points\.csv:5: sync: found 'ring'; allreduce, ps-sync, ps-async",
        ),
        (MEASURED.replace(",step_time_s", ",lo_s"), QUERY, r"points\.csv:1: lo_s: unknown column"),
        ("job,sync,workers\na,allreduce,1\n", QUERY, r"points\.csv:1: step_time_s: this column is needed"),
        (MEASURED, "job,workers\na,1\n", r"shapes\.csv:1: sync: this column is needed"),
        (
            MEASURED,
            QUERY.replace(",b,", ",c,"),
            r"shapes\.csv:4: job: 'c' has no rows in .*points\.csv; measured are a, b",
        ),
        (MEASURED, QUERY.replace("16,", "many,"), r"shapes\.csv:2: workers: found 'many'"),
        (
            MEASURED,
            "job,sync,workers,step_time_s\na,allreduce,1,-1\n",
            r"shapes\.csv:2: step_time_s: found '-1'",
        ),
        (b"\xff\xfe\x00", QUERY, r"points\.csv: cannot be read: it is no text in UTF-8"),
        (MEASURED.replace("0.22", '"0.22'), QUERY, r"points\.csv"),
    ],
)
def test_every_mistake_is_named_with_file_and_line(files, measured, query, message):
    with pytest.raises(UsageError, match=message) as caught:
        predict(*files(measured, query))
    assert caught.value.exit_code == 2


def test_all_mistakes_of_a_file_are_told_at_once(files):
    with pytest.raises(UsageError) as caught:
        predict(*files("sync,workers,step_time_s\n" + "ring,x,-1\n" * 30))
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "... and 70 more"


def test_missing_files_and_folders(files, tmp_path):
    points, shapes = files()
    with pytest.raises(UsageError, match=r"nowhere\.csv: cannot be read"):
        predict(tmp_path / "nowhere.csv", shapes)
    with pytest.raises(UsageError, match="cannot be read"):
        predict(points, tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        predict(points, shapes, output=tmp_path / "no" / "out.csv")
    with pytest.raises(UsageError, match="cannot be used together"):
        predict(points, shapes, as_json=True, output=tmp_path / "out.csv")


def test_lines_are_counted_over_quoted_line_breaks(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text('job,sync,workers,step_time_s\n"a\nb",allreduce,1,1\nc,allreduce,x,1\n')
    with pytest.raises(UsageError, match=r"points\.csv:4: workers"):
        read_table(path, measured=True)
