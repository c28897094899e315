"""What the development of mqtool needs, and no user."""
