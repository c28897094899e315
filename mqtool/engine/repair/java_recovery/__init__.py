"""What brokers of each version do to a store at startup."""
