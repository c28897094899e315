"""The files of one store: opens, reads, appends; checks nothing."""
