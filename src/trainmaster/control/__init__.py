"""The heart: observe, decide, apply. What decides is pure; what touches the world is idempotent.

Read `tick` in `loop.reconcile` (one turn), `decide` (all rules), then `Controller` in `loop.controller`.
"""
