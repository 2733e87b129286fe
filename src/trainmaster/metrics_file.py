"""What a user's script calls to say how it is doing."""

import os


def report(**values: "float | int | str | bool") -> None:
    """Append one line of metrics to the file that ``TRAINMASTER_METRICS`` names.

    Outside Trainmaster (the variable is not set) it does nothing, so a script runs
    unchanged by hand. One ``write`` per line: lines of several processes never mix.

    Args:
        **values: numbers such as ``step=120, loss=0.4, examples=15360``; ``examples``
            is cumulative, and ``total_steps`` is how many steps there will be.
            Zero-dimensional arrays and tensors are accepted.

    Raises:
        TypeError: a value is neither a number, a text nor convertible to a number.
    """
    path = os.environ.get("TRAINMASTER_METRICS")
    if not path:
        return
    import json  # scripts that never report, and `import trainmaster`, do not pay for it

    line = json.dumps({key: _plain(key, value) for key, value in values.items()}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _plain(key: str, value: object) -> "float | int | str | bool":
    if isinstance(value, (bool, int, float, str)):
        return value
    item = getattr(value, "item", None)  # NumPy scalars, PyTorch and TensorFlow tensors
    if callable(item):
        return item()  # type: ignore[no-any-return]
    raise TypeError(f"report({key}=...): {type(value).__name__} is not a number; pass float(value)")
