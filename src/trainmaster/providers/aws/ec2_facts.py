"""What AWS publishes about EC2's instance types and no price list has, checked by hand.

From https://docs.aws.amazon.com/ec2/latest/instancetypes/ (network, accelerators, as of 2025) and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-credits-baseline-concepts.html (credits).
What is not here is unknown, not zero.
"""

from __future__ import annotations

from typing import Final

#: Model and memory (GiB) of one GPU, by family.
GPUS: Final = {
    "p2": ("K80", 12),
    "p3": ("V100", 16),
    "p3dn": ("V100-32GB", 32),
    "p4d": ("A100", 40),
    "p4de": ("A100-80GB", 80),
    "p5": ("H100", 80),
    "p5e": ("H200", 141),
    "p5en": ("H200", 141),
    "g3": ("M60", 8),
    "g3s": ("M60", 8),
    "g4dn": ("T4", 16),
    "g5": ("A10G", 24),
    "g5g": ("T4g", 16),
    "g6": ("L4", 24),
    "gr6": ("L4", 24),
    "g6e": ("L40S", 48),
}

#: Families with accelerators that are no GPUs, which the price list does not count.
OTHER_ACCELERATORS: Final = ("dl", "f1", "f2", "inf", "trn", "vt")

_M5 = {"large": 0.75, "xlarge": 1.25, "2xlarge": 2.5, "4xlarge": 5.0}
_M6I = {"large": 0.781, "xlarge": 1.562, "2xlarge": 3.125, "4xlarge": 6.25}
_M6G = {"medium": 0.5, **_M5}
_M7G = {"medium": 0.52, "large": 0.937, "xlarge": 1.876, "2xlarge": 3.75, "4xlarge": 7.5}
_T3 = {
    "nano": 0.032,
    "micro": 0.064,
    "small": 0.128,
    "medium": 0.256,
    "large": 0.512,
    "xlarge": 1.024,
    "2xlarge": 2.048,
}
#: Gbit/s that a card sustains where the price list only says "up to", by family and size.
NIC_BASELINES: Final = {
    "t3": _T3,
    "t3a": _T3,
    "t4g": _T3,
    "m4": {"large": 0.45, "xlarge": 0.75, "2xlarge": 1.0, "4xlarge": 2.0},
    "m5": _M5,
    "c5": _M5,
    "r5": _M5,
    "m6i": _M6I,
    "c6i": _M6I,
    "r6i": _M6I,
    "m7i": _M6I,
    "c7i": _M6I,
    "m6g": _M6G,
    "c6g": _M6G,
    "m7g": _M7G,
    "p2": {"xlarge": 1.25},
    "p3": {"2xlarge": 2.5},
    "g3": {"4xlarge": 5.0},
    "g4dn": {"xlarge": 5.0, "2xlarge": 10.0, "4xlarge": 20.0},
    "g5": {"xlarge": 2.5, "2xlarge": 5.0, "4xlarge": 10.0},
    "g6": {"xlarge": 2.5, "2xlarge": 5.0, "4xlarge": 10.0},
}

#: What AWS starts machines of these families with unless told otherwise.
CPU_CREDITS: Final = {"t2": "standard", "t3": "unlimited", "t3a": "unlimited", "t4g": "unlimited"}

_T3_SHARES = {
    "nano": 0.05,
    "micro": 0.1,
    "small": 0.2,
    "medium": 0.2,
    "large": 0.3,
    "xlarge": 0.4,
    "2xlarge": 0.4,
}
#: Share of every vCPU that the credits sustain. For ``t2.2xlarge`` AWS prints 17 %; its 81.6 credits an hour
#: are exactly that.
CPU_BASELINE_SHARES: Final = {
    "t2": {
        "nano": 0.05,
        "micro": 0.1,
        "small": 0.2,
        "medium": 0.2,
        "large": 0.3,
        "xlarge": 0.225,
        "2xlarge": 0.17,
    },
    "t3": _T3_SHARES,
    "t3a": _T3_SHARES,
    "t4g": _T3_SHARES,
}
