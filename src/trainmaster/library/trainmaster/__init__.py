"""What PYTHONPATH makes of ``import trainmaster`` in a task: the one that its Python has, else the driver's.

It is found before the packages of the script's Python, and gives way to a Trainmaster among those. On nodes
the driver's is in ``_own`` in this package; here it is the package that this file belongs to.
"""

import importlib.util
import os
import sys


def _become_the_right_one() -> None:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    kept = list(sys.path)
    sys.path[:] = [path for path in kept if os.path.abspath(path) != here]  # noqa: PTH100
    mine = sys.modules.pop(__name__)
    try:
        if _load(importlib.util.find_spec(__name__)):
            return
    except Exception:  # noqa: BLE001, S110 - whatever is wrong with it: the user's script goes on with the driver's
        pass
    finally:
        sys.path[:] = kept
        sys.modules.setdefault(__name__, mine)
    own = os.path.join(here, "trainmaster", "_own")  # noqa: PTH118
    own = own if os.path.isdir(own) else os.path.dirname(here)  # noqa: PTH112, PTH120
    first = os.path.join(own, "__init__.py")  # noqa: PTH118
    _load(importlib.util.spec_from_file_location(__name__, first, submodule_search_locations=[own]))


def _load(spec: "importlib.machinery.ModuleSpec | None") -> bool:
    if spec is None or spec.loader is None:
        return False
    sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return True


if __name__ == "trainmaster":
    _become_the_right_one()
