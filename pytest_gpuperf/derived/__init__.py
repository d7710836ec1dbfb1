"""Quantities that are computed from measured ones: IPC, mixes, priority scores, the roofline.

Pure functions over a `KernelTable` or over a step's values (metric -> number, in the catalogue's
units); they return frozen dataclasses for reports to draw. What cannot be computed is None, and
`missing` of the result says in whole sentences what was not there.
"""
