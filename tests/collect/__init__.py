"""Tests of the collectors."""
