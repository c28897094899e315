"""A master and its slaves: what is sent and what is acknowledged. These rules know neither sockets nor clocks."""
