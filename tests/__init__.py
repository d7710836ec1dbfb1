"""The tests, by the rooms of the package; `repository` holds committed data and documentation."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""
