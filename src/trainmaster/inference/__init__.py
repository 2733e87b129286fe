"""An inference server for models of known formats: ``python -m trainmaster.inference``, an ordinary command.

It runs in tasks, in whatever Python these have: nothing of Trainmaster but this package, NumPy, and the
library of the model's format. It never unpickles.
"""
