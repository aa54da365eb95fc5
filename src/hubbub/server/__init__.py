"""From reports to estimates: fold bytes into a state, decode it, say how sure that is."""
