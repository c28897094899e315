"""What a broker answers, one file a family of requests; each has a table ``PROCESSORS`` of codes."""
