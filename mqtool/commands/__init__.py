"""Arguments in, rows out: one module for each subcommand."""
