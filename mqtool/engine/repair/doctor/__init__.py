"""Diagnosis: why a broker does not start on a store, or does not deliver."""
