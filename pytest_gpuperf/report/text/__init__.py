"""Results as lines of text, for terminals and failing tests."""
