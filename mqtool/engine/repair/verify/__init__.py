"""Checks of a store, which yield findings."""
