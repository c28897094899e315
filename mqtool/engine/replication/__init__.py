"""A master and its slaves: what is sent and what is acknowledged. These rules use neither sockets nor clocks."""
