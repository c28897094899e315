"""The rules of clients."""
