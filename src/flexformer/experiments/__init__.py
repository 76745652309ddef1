"""Experiments: the settings they start from."""
