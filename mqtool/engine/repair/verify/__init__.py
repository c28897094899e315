"""Checks of a store: what is wrong with it, as findings."""
