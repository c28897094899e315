"""New stores built from the messages of others: salvaged, merged or imported."""
