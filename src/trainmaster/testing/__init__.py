"""What plug-ins inherit to prove themselves, and the simulation that our decisions must survive.

The wheel has the contracts and `waits` only; private servers and simulations are in source trees.
"""

import sys
from pathlib import Path

if "pytest" in sys.modules:  # else it shows no values of an assertion that fails in a contract
    sys.modules["pytest"].register_assert_rewrite(
        *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("*_contract*.py"))
    )
