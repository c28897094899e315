"""Judges a store, and mends it."""
