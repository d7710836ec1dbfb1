"""The pytest plugin: hooks, options, the fixture, and the session they share."""
