"""The client rules on real sockets and clocks."""
