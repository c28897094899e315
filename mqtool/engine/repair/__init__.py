"""Verifies stores, and repairs them."""
