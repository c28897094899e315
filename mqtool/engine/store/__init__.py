"""The files of one store: opens, reads, appends; judges nothing."""
