"""What plug-ins inherit to prove themselves, and the simulation that our decisions must survive.

The wheel has the contracts and `waits` only; private servers and simulations are in source trees.
"""
