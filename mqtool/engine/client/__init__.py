"""Rules of a client: plain calls, time as an argument; no sockets, no clock."""
