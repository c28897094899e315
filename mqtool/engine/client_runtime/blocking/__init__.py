"""The same clients for programs without an event loop."""
