"""Durable publish/subscribe for agent streams on S2, for Python programs that block."""
