"""Bytes to values and back: knows no files, no sockets, no clock."""
