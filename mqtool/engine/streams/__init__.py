"""Servers of any protocol: sockets, limits, back pressure, turns, TLS."""
