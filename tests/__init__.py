"""The tests, by the rooms of the package; `repository` holds committed data and documentation."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

EVERY = "GPUPERF_EVERY_CONDITION"
"""The environment variable with which what takes long is tested too, as it is at night."""

_OTHERS = ("hypothesispytest", "benchmark", "asyncio", "pytest_cov", "randomly", "rerunfailures")
ALONE = " ".join(f"-p no:{name}" for name in (*_OTHERS, "timeout"))
"""What keeps plugins of others, but xdist, from a pytest that is started here: it takes half the
time then. A project has those that its arguments ask for by -p."""
