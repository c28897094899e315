"""Client rules on real sockets and clocks."""
