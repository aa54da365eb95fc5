"""Crowds that are made up, and collections from them. Seeded, and therefore insecure."""
