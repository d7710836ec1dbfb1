"""Decisions with a baseline: references, judgements, acceptance, objections."""
