"""The wire: bytes of connections to commands and back, servers and clients."""
