"""What mqtool does with the values of ``formats``: read, judge, mend, serve."""
