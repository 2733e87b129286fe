"""A small market and a job whose true step time is a formula: what the tests of quotes share."""

from datetime import date

from trainmaster.advisor.market.workload import Length, Workload
from trainmaster.advisor.model.devices import Device
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.quote.quoting import Subject
from trainmaster.advisor.quote.supply import Supply
from trainmaster.providers import Catalogue, Offer
from trainmaster.spec import Strategy
from trainmaster.spec.hardware import Hardware

GB = 10**9


def offer(name, price, *, vcpus=8.0, gpu="V100", gpus=1.0, nic=10.0, spot=False, provider="aws", **more):
    facts = {
        "provider": provider,
        "region": "eu-west-1",
        "zone": "",
        "instance_type": name,
        "vcpus": vcpus,
        "memory_bytes": 61 * GB,
        "accelerator": gpu if gpus else "",
        "accelerators": gpus,
        "accelerator_memory_bytes": 16 * GB if gpus else None,
        "nic_gbps": nic,
        "nic_burst_gbps": None,
        "cpu_credits": "",
        "price_usd_per_hour": price,
        "spot": spot,
        "billing_quantum_s": 1.0,
        "billing_minimum_s": 60.0,
        "currency": "USD",
        "as_of": date(2026, 11, 1),
        "source": "made up",
    }
    return Offer(**{**facts, **more})


def market(*offers, **more):
    return Supply(Catalogue("test", tuple(offers)), **more)


def own_machine(slots=2):
    here = offer("here", 0.0, gpus=0.0, vcpus=float(slots), provider="local")
    return Supply(Catalogue("local", (here,)), own_machine=True, slots=slots)


def step_s(workers, batch, compute=0.002, network=0.01):
    return 0.02 + compute * batch + (network * (workers - 1) / workers if workers > 1 else 0.0)


def measured(workers, batch, offer="p3.2xlarge", sync=Strategy.ALLREDUCE, **more):
    point = Point(
        sync,
        workers,
        nodes=workers,
        parameter_servers=int(sync.has_servers),
        local_batch=batch,
        nic_mbps=10_000,
        step_time_s=step_s(workers, batch),
    )
    return Measurement(point, startup_s=5.0, offer=offer, **more)


DEVICES = {"p3.2xlarge": Device("V100", 8.0, "p3.2xlarge"), "local": Device("", 2.0, "local")}


def knowledge(*measurements, similar=()):
    found = Knowledge.of(list(measurements), list(similar), DEVICES, {"p3.2xlarge": 10_000.0})
    assert found is not None
    return found


def workload(name="train", *, total_batch=256, epochs=10, examples=50_000, most=16, **more):
    steps = epochs * -(-examples // total_batch)
    lengths = {n: Length(steps, epochs, total_batch // n) for n in range(1, most + 1) if total_batch % n == 0}
    facts = {"sync": Strategy.ALLREDUCE, "tasks": 1, "hardware": Hardware(gpus=1), "most_workers": most}
    return Workload(name=name, lengths=lengths, **{**facts, **more})


def training(**more):
    points = [measured(n, b) for n in (1, 2, 4) for b in (32, 128)]
    return Subject(workload(**more), knowledge(*points))
