"""Trainmaster: from a recipe to a trained model, at the price that was quoted.

Importing this package costs nothing: the supervisor and the user's scripts do so.
"""

from trainmaster.metrics_file import report

__all__ = ["__version__", "report"]

__version__ = "0.1.0"
