"""The repair ``rebuild``: queues, index and tables are rebuilt from the commit log."""
