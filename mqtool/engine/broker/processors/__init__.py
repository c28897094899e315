"""The answers of a broker, one file per family of requests; each has a table ``PROCESSORS`` of codes."""
