"""Write the catalogue that ships with the package, from Apache Libcloud's price list.

    pip download --no-deps apache-libcloud==3.9.1
    unzip apache_libcloud-3.9.1-*.whl 'libcloud/data/*' 'libcloud/compute/constants/*' -d libcloud-3.9.1
    python scripts/make_catalogue.py libcloud-3.9.1/libcloud/data/pricing.json --version 3.9.1

`libcloud_prices.py` drops prices that are no prices, and adds what was checked by hand. This script only
chooses: a thousand rows are enough to quote by, and the whole list would be 13 times as large.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from libcloud_prices import GPUS, MachineType, _ec2_types, libcloud_catalogue

from trainmaster.providers import Offer
from trainmaster.providers.loading import _DATA
from trainmaster.providers.own_csv import write_own_csv

REGIONS: Final = {
    "aws": (
        "us-east-1",
        "us-east-2",
        "us-west-2",
        "eu-west-1",
        "eu-central-1",
        "ap-southeast-1",
        "ap-northeast-1",
    ),
    "azure": ("eastus", "westus2", "westeurope", "southeastasia"),
    "gcp": ("us-central1", "europe-west1", "asia-southeast1"),
}
FAMILIES: Final = frozenset(
    "t2 t3 m4 m5 m6i m7i m6g m7g c4 c5 c6i c7i c6g r5 r6i p2 p3 p3dn p4d p5 g3 g3s g4dn g5 g6 g6e".split()  # noqa: SIM905
)
#: Too small to train on.
SMALL: Final = ("nano", "micro")
GCE_KINDS: Final = ("n1-standard", "n1-highmem", "n2-standard", "n2-highmem", "e2-standard", "c2-standard")
#: The largest CPU machines are left out.
MOST_VCPUS: Final = 96

#: Prices of families with a single size, which nothing in the list confirms, but a person did: Amazon's
#: published ones. For p4d in Ireland: were it that of dedicated hardware, the shared one would be below
#: Virginia's 32.7726, which no family's is.
CONFIRMED: Final = {
    ("p3dn.24xlarge", "us-east-1"): 31.212,
    ("p3dn.24xlarge", "us-west-2"): 31.212,
    ("p3dn.24xlarge", "eu-west-1"): 33.711,
    ("p4d.24xlarge", "us-east-1"): 32.7726,
    ("p4d.24xlarge", "us-west-2"): 32.7726,
    ("p4d.24xlarge", "eu-west-1"): 35.39655,
    ("p5.48xlarge", "us-east-1"): 98.32,
    ("p5.48xlarge", "us-west-2"): 98.32,
    ("g3s.xlarge", "us-east-1"): 0.75,
    ("g3s.xlarge", "us-west-2"): 0.75,
}


def wanted(offer: Offer) -> bool:
    """Whether an offer is among those that ship."""
    if offer.region not in REGIONS[offer.provider] or (offer.vcpus > MOST_VCPUS and not offer.accelerators):
        return False
    if offer.provider == "aws":
        family, _, size = offer.instance_type.partition(".")
        return family in FAMILIES and size not in SMALL
    if offer.provider == "gcp":
        return offer.instance_type.rpartition("-")[0] in GCE_KINDS and offer.vcpus <= 64
    return True


def confirmed_offers(pricing: Path, like: Offer) -> list[Offer]:
    """Offers of the single-size families whose price is what a person confirmed."""
    listed = json.loads(pricing.read_text())["compute"]["ec2_linux"]
    types = _ec2_types(pricing)
    offers = []
    for (name, region), price in CONFIRMED.items():
        if listed.get(name, {}).get(region) != price:
            sys.stderr.write(f"left out: {name} in {region}: {price} was confirmed, the list has another\n")
            continue
        machine, _ = types[name]
        assert name.partition(".")[0] in GPUS
        facts = {attribute: getattr(machine, attribute) for attribute in MachineType.__slots__}
        facts |= {"cpu_credits": "", "cpu_baseline_share": None}
        offers.append(replace(like, region=region, price_usd_per_hour=price, **facts))
    return offers


def main() -> None:
    """Read, choose, sort, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "pricing", type=Path, help="Libcloud's data/pricing.json, in its place in the package"
    )
    parser.add_argument("--version", required=True, help="of Libcloud")
    parser.add_argument("--output", type=Path, default=_DATA / "builtin.csv")
    arguments = parser.parse_args()

    offers = [offer for offer in libcloud_catalogue(arguments.pricing) if wanted(offer)]
    example = next(offer for offer in offers if offer.provider == "aws")
    offers += confirmed_offers(arguments.pricing, example)
    offers.sort(
        key=lambda o: (o.provider, o.instance_type.partition(".")[0], o.vcpus, o.accelerators, *o.key)
    )
    sourced = [
        replace(o, source=o.source.replace("libcloud", f"apache-libcloud {arguments.version}"))
        for o in offers
    ]
    text = (
        "# Facts from Apache Libcloud's data/pricing.json and compute/constants/ec2_instance_types.py\n"
        "# (https://libcloud.apache.org, Apache-2.0; https://pypi.org/project/apache-libcloud/"
        f"{arguments.version}/)\n"
        "# with bandwidths, GPU memory and CPU credits that the vendors publish. Written by\n"
        "# scripts/make_catalogue.py: change that, not this.\n"
    ) + write_own_csv(sourced)
    arguments.output.write_text(text)
    sys.stderr.write(f"{len(sourced)} offers, {len(text):,} bytes in {arguments.output}\n")


if __name__ == "__main__":
    main()
