"""What tests of the plugin share."""

from __future__ import annotations

import pytest

from tests.plugin.projects import STEP, Project


@pytest.fixture
def a100(project: Project) -> Project:
    """A project with one test, on a scripted A100 that has no baseline."""
    project.device()
    project.tests(STEP)
    return project
