"""What `gpuperf X` does and prints."""
