"""The step executed and counted: collectors, fresh processes, and the device they are about."""
