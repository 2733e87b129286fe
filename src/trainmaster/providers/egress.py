"""What providers charge for data that leaves them to the internet: list prices of their first tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Dollars per 10^9 bytes, as published in 2025 for regions in the USA and Europe; of others none is
#: known. The first 100 GB a month are free on AWS and Azure; quotes do not count on that.
EGRESS_USD_PER_GB: Final[Mapping[str, float]] = {"aws": 0.09, "azure": 0.087, "gcp": 0.12}
