"""What only a GPU can show. Skipped, with the reason, where there is none."""
