"""Rules of a name server."""
