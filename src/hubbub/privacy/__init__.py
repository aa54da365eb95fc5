"""What guarantees become when reports are shuffled and when they are repeated, and what no mechanism can do better."""
