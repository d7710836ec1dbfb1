"""What people read: reports only read what was measured and judged."""
