"""What mqtool does with the values of ``formats``: read, check, repair, serve."""

import logging

# Programs that set up no logging of their own hear nothing from this library, as of others.
logging.getLogger("mqtool").addHandler(logging.NullHandler())
