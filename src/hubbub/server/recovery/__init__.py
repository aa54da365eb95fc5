"""From noisy measurements of many keys to the few that matter, and to the distributions that are possible."""
