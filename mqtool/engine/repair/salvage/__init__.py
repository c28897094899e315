"""New stores made of the messages of others: salvaged, merged or imported."""
