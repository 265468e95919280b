"""Bindings for web frameworks. Nothing is imported here, so each needs only its own framework."""
