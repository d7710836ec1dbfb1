"""GroupNorm with SiLU and the time embedding in one operator, for volumes in either layout."""
