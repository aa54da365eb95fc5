"""Which mechanism, with what error and what bytes, and the inverse questions."""
