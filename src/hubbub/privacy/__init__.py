"""Checking and composing guarantees."""
