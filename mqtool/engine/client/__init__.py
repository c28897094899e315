"""Rules of a client."""
