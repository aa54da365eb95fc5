"""The nouns: record, keys, guarantee, mechanism, state. What all mechanisms have in common, and no mechanism yet."""
