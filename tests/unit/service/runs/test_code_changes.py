from trainmaster.service.runs.comparison import code_changes


def test_files_that_differ_are_told_and_lines_of_small_texts(tmp_path):
    for name, files in {
        "before": {
            "train.py": b"a = 1\nb = 2\n",
            "old.py": b"",
            "a.log": b"1",
            "same.py": b"x",
            "w.bin": b"\xff\x00",
        },
        "after": {"train.py": b"a = 1\nb = 3\n", "lib/new.py": b"new", "same.py": b"x", "w.bin": b"\xff\x01"},
    }.items():
        for path, data in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(data)
        (tmp_path / name / "recipe.yaml").write_text(name)
    assert code_changes(tmp_path / "before", tmp_path / "after", [b"before", b"after"]) == [
        {"path": "lib/new.py", "is_source": True, "change": "added", "lines": []},
        {"path": "old.py", "is_source": True, "change": "removed", "lines": []},
        {
            "path": "train.py",
            "is_source": True,
            "change": "changed",
            "lines": ["--- train.py", "+++ train.py", "@@ -1,2 +1,2 @@", " a = 1", "-b = 2", "+b = 3"],
        },
        {"path": "a.log", "is_source": False, "change": "removed", "lines": []},
        {"path": "w.bin", "is_source": False, "change": "changed", "lines": []},
    ]


def test_of_a_long_diff_the_beginning_is_shown(tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("".join(f"{name} {line}\n" for line in range(1000)))
    (found,) = code_changes(tmp_path / "before", tmp_path / "after")
    assert (len(found["lines"]), found["lines"][-1]) == (201, " ... 1803 more lines")


def test_links_and_what_may_be_run_differ_too_and_links_are_not_followed(tmp_path):
    (tmp_path / "private").write_text("hush")
    for name, target, mode in (("before", "there", 0o644), ("after", "../private", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").symlink_to(target)
        (tmp_path / name / "same").symlink_to("../private")
        (tmp_path / name / "train.sh").write_text("echo")
        (tmp_path / name / "train.sh").chmod(mode)
    found = code_changes(tmp_path / "before", tmp_path / "after", [b"hush"])
    assert [(each["path"], each["change"], each["lines"]) for each in found] == [
        ("train.sh", "changed", []),
        ("data", "changed", []),
    ]
