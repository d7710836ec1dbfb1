"""Forty causes of slower training steps: put in, measured, judged, and what was said of them.

causes.yaml has them, with what has to be said of each, written before any was run. `patches.py`
puts one into a process, `steps.py` has the training steps, test_causes.py measures them as any
user's test does, `scores.py` compares what a judged run says with what is expected.
"""
