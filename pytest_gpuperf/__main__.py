"""`python -m pytest_gpuperf` is `gpuperf`, for a checkout that is not installed."""

import sys

from pytest_gpuperf.cli import main

sys.exit(main())
