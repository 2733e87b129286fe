"""The heart: observe, decide, apply. What decides is pure; what touches the world is idempotent.

Read `tick` (one turn), `decide_task` and `decide_run` (all rules), then `Controller` (the loop).
"""
