"""The plugin as its users see it: projects that run under pytest."""
