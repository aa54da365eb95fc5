"""Tables on disk: one row per user and key, or one row per key with its count."""
