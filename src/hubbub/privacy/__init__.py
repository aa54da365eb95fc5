"""What guarantees become when reports are shuffled or repeated, and what no mechanism can do better."""
