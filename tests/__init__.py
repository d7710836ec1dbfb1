"""The tests of the plugin and of its suites."""
