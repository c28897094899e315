"""Verification and repair of stores."""
