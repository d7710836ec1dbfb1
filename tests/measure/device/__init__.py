"""Tests of the device that is measured."""
