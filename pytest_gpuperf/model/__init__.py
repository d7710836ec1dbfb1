"""The data that the rooms exchange: measurements, results, baseline entries. Fields only."""
