"""Spark jobs over a store too large for one machine."""
