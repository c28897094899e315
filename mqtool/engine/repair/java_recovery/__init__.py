"""What brokers of each version do to a store when they start."""
