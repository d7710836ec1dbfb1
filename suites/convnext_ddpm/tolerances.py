"""What may vary in the suite, as the marker `gpuperf` takes it."""

HOST_BOUND = {"cycles": "100%", "step_time": "100%"}
"""Of a step whose kernels take microseconds and are launched one by one.

The GPU waits for its host most of the time, so that what passes between the first kernel and the
last is the host's time: on two machines with an H200, 6.2 and 9.5 ms for the same kernels. Counts
and `kernel_time`, of the set `activity`, are held as tightly as anywhere.
"""
