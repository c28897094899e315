"""Comparison of two stores."""
