"""Populations to try things on, and what comes out."""
