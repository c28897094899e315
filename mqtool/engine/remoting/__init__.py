"""The remoting protocol: bytes to commands and back, servers and clients."""
