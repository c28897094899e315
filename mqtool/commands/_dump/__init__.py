"""The kinds of file that ``mqtool dump`` lists: each a function from a request to rows."""
