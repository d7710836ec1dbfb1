"""The suites that the plugin ships: training steps whose performance it guards."""
