"""The repair ``rebuild``: queues, index and tables are made again from the commit log."""
