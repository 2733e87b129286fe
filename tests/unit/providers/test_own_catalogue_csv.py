"""Our own CSV layout: what is written is read again, what is wrong is refused by name."""

import os
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.providers import Offer, load_catalogue
from trainmaster.providers.own_csv import COLUMNS, write_own_csv
from trainmaster.spec.errors import NotFoundError, UsageError

GIB = 1 << 30
TODAY = date(2026, 6, 1)
HEADER = "provider,region,instance_type,vcpus,memory_gib,gpu,gpus,price_usd_per_hour,as_of"
GOOD = "aws,eu-west-1,m4.large,2,8,,,0.111,2026-05-01"


@pytest.fixture
def read(tmp_path):
    def read(text, name="mine.csv", **options):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n", encoding="utf-8")
        return load_catalogue(path, today=TODAY, **options)

    return read


@pytest.fixture
def refused(read, tmp_path):
    def refused(text):
        with pytest.raises(UsageError) as caught:
            read(text)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return refused


# Words as they stand in catalogues, with what makes CSV hard. A cell is stripped, so no blanks at its ends;
# \r and \n within a cell would be normalised by universal newlines.
words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12) | (
    st.sampled_from(['a,"b"', "Standard_D2s v3", "#odd", "ünï"])
)
amounts = st.floats(1e-6, 1e5)


@st.composite
def offers(draw):
    gpus = draw(st.sampled_from([0.0, 0.5, 1.0, 8.0]))
    slow = draw(st.none() | amounts)
    return Offer(
        provider=draw(words).lower().lstrip("#") or "p",  # a line that begins with # is a comment
        region=draw(st.just("") | words),
        zone=draw(st.just("") | words),
        instance_type=draw(words),
        vcpus=draw(amounts),
        memory_bytes=draw(st.integers(1, 1 << 42)),
        accelerator=draw(words) if gpus else "",
        accelerators=gpus,
        accelerator_memory_bytes=draw(st.none() | st.integers(1, 1 << 40)) if gpus else None,
        nic_gbps=slow,
        nic_burst_gbps=draw(st.none() | st.floats(slow or 1e-6, 2e5)),
        cpu_credits=draw(st.sampled_from(["", "standard", "unlimited"])),
        price_usd_per_hour=draw(amounts),
        spot=draw(st.booleans()),
        billing_quantum_s=draw(amounts),
        billing_minimum_s=draw(st.floats(0, 1e4)),
        currency="USD",
        as_of=draw(st.dates(date(2000, 1, 1), TODAY)),
        source=draw(words),
        arch=draw(st.sampled_from(["", "x86_64", "arm64"])),
        cpu_baseline_share=draw(st.none() | st.floats(0.01, 1)),
    )


@given(st.lists(offers(), min_size=1, max_size=5, unique_by=lambda o: o.instance_type))
def test_what_is_written_is_read_again(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    path.write_text(write_own_csv(written), encoding="utf-8")
    assert list(load_catalogue(path, today=TODAY)) == written


@given(
    st.lists(
        st.sampled_from(["0", "-1", "nan", "NaN", "inf", "1e999", "", " ", "free", "0,1", "1_0", "$3", "½"]),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["price_usd_per_hour", "vcpus", "memory_gib"]),
)
def test_no_bad_number_is_ever_used(tmp_path_factory, bad, column):
    names = HEADER.split(",")
    lines = [HEADER]
    for number, text in enumerate(bad):
        cells = dict(zip(names, GOOD.split(","), strict=True))
        cells["instance_type"] = f"t{number}"
        cells[column] = f'"{text}"'
        lines.append(",".join(cells.values()))
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_catalogue(path, today=TODAY)
    for number in range(len(bad)):
        assert f"{path}:{number + 2}: aws eu-west-1 t{number}: " in str(caught.value)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_file_whatever_gives_anything_but_offers_or_a_message(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError):
        load_catalogue(path, today=TODAY)


@given(st.lists(st.lists(st.text(max_size=8), max_size=9), max_size=5))
def test_no_row_whatever_gives_anything_but_offers_or_a_message(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    body = "\n".join(",".join(cells) for cells in rows)
    path.write_bytes(f"{HEADER}\n{GOOD}\n{body}\n".encode("utf-8", "surrogatepass"))
    try:
        catalogue = load_catalogue(path, today=TODAY)
    except UsageError:
        return
    assert all(offer.price_usd_per_hour > 0 for offer in catalogue)


def test_the_least_that_is_needed(read):
    catalogue = read(["instance_type,vcpus,memory_gib,price_usd_per_hour", "big,4,16,0.5"])
    (offer,) = catalogue
    assert (offer.provider, offer.region, offer.spot, offer.currency) == ("own", "", False, "USD")
    assert (offer.accelerator, offer.accelerators, offer.nic_gbps) == ("", 0, None)
    assert offer.memory_bytes == 16 * GIB
    assert (offer.billing_quantum_s, offer.billing_minimum_s) == (60, 60)  # nobody is promised too little
    assert offer.source.endswith("mine.csv:2")
    assert catalogue.by_hand


def test_every_column(read):
    cells = {
        "provider": "AWS",
        "region": "eu-west-1",
        "zone": "eu-west-1a",
        "instance_type": "t3.large",
        "vcpus": "2",
        "memory_gib": "7.5",
        "gpu": "T4",
        "gpus": "0.5",
        "gpu_memory_gib": "16",
        "nic_gbps": "0.512",
        "nic_burst_gbps": "5",
        "cpu_credits": "Unlimited",
        "cpu_baseline_share": "0.3",
        "price_usd_per_hour": "0.0912",
        "spot": "TRUE",
        "billing_quantum_s": "3600",
        "billing_minimum_s": "7200",
        "currency": "usd",
        "arch": "x86_64",
        "as_of": "2026-05-01T10:00:00Z",
        "source": "the page",
    }
    assert set(cells) == set(COLUMNS)
    (offer,) = read([",".join(cells), ",".join(cells.values())])
    assert offer == Offer(
        "aws",
        "eu-west-1",
        "eu-west-1a",
        "t3.large",
        2.0,
        round(7.5 * GIB),
        "T4",
        0.5,
        16 * GIB,
        0.512,
        5.0,
        "unlimited",
        0.0912,
        True,
        3600.0,
        7200.0,
        "USD",
        date(2026, 5, 1),
        "the page",
        "x86_64",
        0.3,
    )
    assert len(fields(Offer)) == len(COLUMNS) + 1, "what is rented with a machine is known of its provider"


def test_terms_of_billing_are_the_providers(read):
    catalogue = read([HEADER, GOOD, GOOD.replace("aws", "azure"), GOOD.replace("aws", "somebody")])
    terms = [(o.billing_quantum_s, o.billing_minimum_s) for o in catalogue]
    assert terms == [(1, 60), (1, 0), (60, 60)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("aws,eu,m4.large,2,8,,,0,2026-05-01", "mine.csv:2: aws eu m4.large: the price is 0 USD per hour"),
        ("aws,eu,m4.large,2,8,,,-1,2026-05-01", "the price is -1 USD per hour"),
        ("aws,eu,m4.large,2,8,,,nan,2026-05-01", "price_usd_per_hour: 'nan'; a number is needed"),
        ("aws,eu,m4.large,2,8,,,,2026-05-01", "price_usd_per_hour: nothing; a number is needed"),
        ("aws,eu,m4.large,two,8,,,1,2026-05-01", "vcpus: 'two'; a number is needed"),
        ("aws,eu,m4.large,2,8589934592,,,1,2026-05-01", "memory_gib: 8589934592; more than 0 and at most"),
        ("aws,eu,m4.large,2,8,,1,1,2026-05-01", "1 GPUs without a model"),
        ("aws,eu,m4.large,2,8,V100,,1,2026-05-01", "a GPU model (V100) without a number of GPUs"),
        ("aws,eu,m4.large,2,8,,,1,May", "as_of: 'May'; a date such as 2026-11-20 is needed"),
        ("aws,eu,m4.large,2,8,,,1,2027-01-01", "which is in the future"),
        ("aws,eu,,2,8,,,1,2026-05-01", "instance_type: nothing; a name is needed"),
        ("aws,eu,m4.large,2,8", "mine.csv:2: it has 5 cells; the header has 9 columns"),
    ],
)
def test_a_bad_row_is_refused_by_name(refused, row, says):
    assert says in refused([HEADER, row])


def test_refused_rows_are_listed_up_to_ten(refused):
    message = refused([HEADER, GOOD, *(f"aws,eu,t{n},2,8,,,0,2026-05-01" for n in range(14))])
    lines = message.splitlines()
    assert lines[0] == "mine.csv:3: aws eu t0: the price is 0 USD per hour; more than 0 is needed"
    assert lines[9].startswith("mine.csv:12: ")
    assert lines[10:] == ["... and 4 more", "Correct these rows, or take them out."]


def test_contradictions_in_the_users_own_file_are_errors(refused):
    message = refused([HEADER, GOOD, GOOD.replace("0.111", "0.2")])
    assert "mine.csv:3: aws eu-west-1 m4.large: the same as line 2 with another price" in message
    spot = [f"{HEADER},spot", f"{GOOD},no", f"{GOOD.replace('0.111', '0.2')},yes"]
    assert "spot for 0.2 USD is dearer than on demand for 0.111" in refused(spot)
    spot[2] = f"{GOOD},perhaps"
    assert "spot: 'perhaps'; true or false is needed" in refused(spot)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (
            "instance_typ,vcpus,memory_gib,price_usd_per_hour",
            "there is no column 'instance_typ'; did you mean instance_type?",
        ),
        (
            "instance_type,vcpus,memory_gib,price_usd_per_hour,Ansible",
            "there is no column 'Ansible'; known are",
        ),
        ("instance_type,vcpus,memory_gib", "no column price_usd_per_hour"),
        ("instance_type,vcpus,vcpus,memory_gib,price_usd_per_hour", "the column vcpus is there twice"),
        ("a,b,c", "no known header of a catalogue: a, b, c"),
    ],
)
def test_a_bad_header_is_refused(refused, header, says):
    assert f"mine.csv:1: {says}" in refused([header, "x,1,1,1"])


def test_comments_blank_lines_and_the_mark_of_excel(read, refused):
    catalogue = read(["\ufeff# prices of May", HEADER, "", GOOD, "# no more"])
    assert [o.instance_type for o in catalogue] == ["m4.large"]
    assert "mine.csv:6: " in refused(["# a", HEADER, "", GOOD, "# b", "aws,eu,m4.large,2,8,,,0,2026-05-01"])


def test_without_a_date_that_of_the_file_is_taken_aloud(read, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("instance_type,vcpus,memory_gib,price_usd_per_hour\nbig,4,16,0.5\n")
    then = datetime(2026, 2, 3, 12, tzinfo=UTC).timestamp()
    os.utime(path, (then, then))
    catalogue = load_catalogue(path, today=TODAY)
    assert catalogue.as_of == date(2026, 2, 3)
    assert "that of the file is taken, 2026-02-03" in catalogue.warnings[0]
    assert not read([HEADER, GOOD]).warnings


def test_an_empty_file(refused):
    assert "mine.csv:1: no known header of a catalogue: nothing" in refused("")


def test_what_is_no_file(tmp_path, refused):
    with pytest.raises(NotFoundError, match="no catalogue 'bultin'"):
        load_catalogue("bultin")
    with pytest.raises(UsageError, match="cannot be read"):
        load_catalogue(tmp_path)
    (tmp_path / "latin.csv").write_bytes(HEADER.encode() + b"\n\xff,a,b,1,1,,,1,2026-05-01\n")
    with pytest.raises(UsageError, match="it is no text in UTF-8"):
        load_catalogue(tmp_path / "latin.csv")
    assert "mine.csv:2: is no CSV" in refused([HEADER, '"aws'])


def test_a_file_named_like_a_catalogue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fc2-2018").write_text(f"{HEADER}\n{GOOD}\n")
    assert len(load_catalogue("fc2-2018")) == 9
    assert len(load_catalogue("./fc2-2018", today=TODAY)) == 1


def test_a_fact_changed_after_reading_is_checked_too(read):
    (offer,) = read([HEADER, GOOD])
    with pytest.raises(ValueError, match="the price is 0 USD"):
        replace(offer, price_usd_per_hour=0.0)
