"""Threads and their hand-offs. Knows nothing of publish/subscribe, JSON or S2."""
