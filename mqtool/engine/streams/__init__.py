"""Servers of any protocol: sockets, limits, back pressure, fairness, TLS."""
