"""What travels between the rooms: measurements, results and baseline entries. Fields only."""
