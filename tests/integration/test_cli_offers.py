"""`trainmaster offers` from the user's seat."""

import subprocess
import sys

import pytest

HEADER = "provider,region,instance_type,vcpus,memory_gib,gpu,gpus,price_usd_per_hour,spot,as_of"
ROWS = (
    "acme,eu-1,big,16,64,V100,2,4.5,no,2026-01-05",
    "acme,eu-1,big,16,64,V100,2,1.5,yes,2026-01-05",
    "acme,us-1,small,4,16,,,0.2,no,2026-01-06",
)


@pytest.fixture
def own(tm):
    return tm.write("own.csv", "\n".join([HEADER, *ROWS]) + "\n")


def names(result):
    return [(offer["instance_type"], offer["price_usd_per_hour"]) for offer in result.json["offers"]]


def test_a_table_for_people(tm):
    result = tm.call("offers", "--gpu", "v100", "--gpus", "8")
    lines = result.out.splitlines()
    assert " ".join(lines[0].split()) == "$/hour instance vCPUs memory GPUs network provider place as of"
    assert "Standard_ND40rs_v2" in lines[1]
    assert "8 V100-32GB" in lines[1]
    assert any("p3.16xlarge" in line and "25 Gbit/s" in line for line in lines[2:])
    assert result.err.splitlines()[-1].startswith("warning: old prices (2020-08-30 to 2025-03-02)")


def test_the_table_is_short_and_sorted_by_price(tm):
    result = tm.call("offers")
    lines, notes = result.out.splitlines(), result.err.splitlines()
    prices = [float(line.split()[0]) for line in lines[1:21]]
    assert prices == sorted(prices)
    assert len(lines) == 21
    assert notes[0].startswith("... and 1,0")
    assert notes[1].startswith("* CPU credits")
    assert notes[2] == "prices of aws hold a disk of 64 GiB and a public address"
    assert len(notes) == 4
    most = tm.call("offers", "--sort", "gpus", "--limit", "2").out.splitlines()
    assert len(most) == 3
    assert all("16 K80" in line for line in most[1:3])


def test_the_object_for_machines(tm):
    result = tm.call(
        "offers", "--instance", "p3.2xlarge", "--region", "eu-*", "--instance", "g4dn.*", "--json"
    )
    assert result.out.count("\n") == 1
    assert result.err == ""
    found = result.json
    assert found["catalogue"] == "builtin"
    assert found["as_of"] == "2025-03-02"
    assert found["total"] == len(found["offers"]) > 3
    assert found["refused"] == 0
    assert found["offers"][0] == {
        "provider": "aws",
        "region": "eu-west-1",
        "zone": "",
        "instance_type": "g4dn.xlarge",
        "vcpus": 4.0,
        "memory_bytes": 16 << 30,
        "accelerator": "T4",
        "accelerators": 1.0,
        "accelerator_memory_bytes": 16 << 30,
        "nic_gbps": 5.0,
        "nic_burst_gbps": 25.0,
        "cpu_credits": "",
        "price_usd_per_hour": pytest.approx(0.587 + 64 * 0.088 / 672 + 0.005),
        "extras_usd_per_hour": pytest.approx(64 * 0.088 / 672 + 0.005),
        "spot": False,
        "billing_quantum_s": 1.0,
        "billing_minimum_s": 60.0,
        "currency": "USD",
        "as_of": "2025-03-02",
        "source": "apache-libcloud 3.9.1 ec2_linux",
        "arch": "x86_64",
        "cpu_baseline_share": None,
    }


def test_filters(tm, own):
    def found(*arguments):
        return names(tm.call("offers", "--catalogue", own, "--json", *arguments))

    assert found() == [("small", 0.2), ("big", 1.5), ("big", 4.5)]
    assert found("--gpu", "v100") == [("big", 1.5), ("big", 4.5)]
    assert found("--gpu", "v100", "--on-demand") == [("big", 4.5)]
    assert found("--spot") == [("big", 1.5)]
    assert found("--gpus", "0") == [("small", 0.2)]
    assert found("--cpus", "5", "--max-price", "$3") == [("big", 1.5)]
    assert found("--memory", "17GiB", "--provider", "acme", "--sort", "price-per-gpu", "--limit", "1") == [
        ("big", 1.5)
    ]
    assert found("--region", "us-*") == [("small", 0.2)]
    assert found("--sort", "instance")[0][0] == "big"


def test_nothing_found_is_an_answer_with_a_hint(tm, own):
    result = tm.call("offers", "--catalogue", own, "--gpu", "h100", "--cpus", "2")
    assert "has nothing with gpu: h100, cpus: 2. Change gpu. Its GPUs are V100." in result.err
    found = tm.call("offers", "--catalogue", own, "--provider", "awz", "--json").json
    assert found["offers"] == []
    assert found["as_of"] is None
    assert "provider: awz. Change provider. Its providers are acme." in found["warnings"][-1]
    result = tm.call("offers", "--catalogue", own, "--spot", "--max-price", "1", "--memory", "1GB")
    assert "Change max_price, spot." in result.err


def test_a_provider_with_a_list_of_its_own(tm):
    refused = tm.call("offers", "--provider", "slurm", code=2)
    assert "slurm.yaml" in refused.err
    tm.home.mkdir(exist_ok=True)
    machines = "{gpu: {cpus: 16, memory: 64GB, gpus: 4, gpu: A100}, cpu: {cpus: 32, memory: 120GB}}"
    (tm.home / "slurm.yaml").write_text(f"login: ada@login.example.org\nmachines: {machines}\n")
    assert names(tm.call("offers", "--provider", "slurm", "--gpus", "2", "--json")) == [("gpu", 0.0)]


def test_catalogues_by_name(tm):
    result = tm.call("offers", "--catalogue", "fc2-2018", "--json", "--sort", "nic")
    assert names(result)[0] == ("m4.10xlarge", pytest.approx(2.514, abs=1e-3))
    assert result.json["as_of"] == "2018-08-31"
    assert len(result.json["offers"]) == 9
    (machine,) = tm.call("offers", "--catalogue", "local", "--json").json["offers"]
    assert (machine["provider"], machine["price_usd_per_hour"]) == ("local", 0)


def test_rows_of_others_that_are_refused_are_counted_and_shown(tm):
    sky = "InstanceType,vCPUs,MemoryGiB,Price,SpotPrice,Region\nm5.large,2,8,0.096,,r\nm5.xlarge,4,16,0,,r\n"
    path = tm.write("aws/vms.csv", sky)
    result = tm.call("offers", "--catalogue", path)
    assert "1 row of the catalogue refused: see --refused" in result.err
    shown = tm.call("offers", "--catalogue", path, "--refused").out.splitlines()
    assert shown[0].endswith("vms.csv:3: r m5.xlarge: the price is 0 USD per hour; more than 0 is needed")
    found = tm.call("offers", "--catalogue", path, "--refused", "--json").json
    assert found["refused"] == 1
    assert (found["refused_rows"][0]["line"], found["refused_rows"][0]["offer"]) == (3, "r m5.xlarge")


def test_mistakes_in_ones_own_file(tm):
    path = tm.write("bad.csv", f"{HEADER}\nacme,eu-1,big,16,64,,,0,no,2026-01-05\n")
    result = tm.call("offers", "--catalogue", path, code=2)
    assert result.out == ""
    assert "bad.csv:2: acme eu-1 big: the price is 0 USD per hour" in result.err
    path = tm.write("bad.csv", "instance_type,vcpus,memory_gib,price_usd_per_hour,regoin\n")
    assert "did you mean region?" in tm.call("offers", "--catalogue", path, code=2).err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--catalogue", "nowhere"], "no catalogue 'nowhere'"),
        (["--sort", "prise"], "Did you mean price?"),
        (["--max-price", "cheap"], "'cheap' is no price"),
        (["--max-price", "0"], "nothing costs 0"),
        (["--max-price", "3 EUR"], "'3 EUR' is no price"),
        (["--memory", "16"], "has no unit"),
        (["--gpus", "-1"], "--gpus"),
        (["--cpus", "many"], "--cpus"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_a_wrong_call(tm, arguments, says):
    result = tm.call("offers", *arguments, code=2)
    assert says in result.err
    assert result.out == ""


def test_help_imports_nothing_that_only_work_needs():
    """What it takes is in `benchmarks/command_line.py`."""
    heavy = {
        "numpy",
        "sqlalchemy",
        "obstore",
        "boto3",
        "ruamel.yaml",
        "trainmaster.providers",
        "trainmaster.db",
    }
    program = (
        "import sys\n"
        "sys.argv = ['trainmaster', 'offers', '--help']\n"
        "from trainmaster.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', *sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--max-price" in done.stdout
    assert done.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("echo hello", 200),
        ("echo > $TRAINMASTER_OUTPUT_DIR/model; echo > $TRAINMASTER_CHECKPOINT_DIR/state", 210),
    ],
)
def test_a_run_imports_little(tm, what, most):
    """What only machines, servers, quotes or searches need is left out: importing is most of a short run."""
    recipe = tm.task(what, checkpoint={"every": "1h"})
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*(name for name in sys.modules if name.startswith('trainmaster'))))\n"
        "from trainmaster.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "run", str(recipe), "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=tm.env)
    loaded = done.stdout.split()
    assert "trainmaster.control.loop.controller" in loaded
    assert len(loaded) <= most, loaded
