"""Rules of a broker: plain calls with the time as an argument; no sockets."""
