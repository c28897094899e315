"""Work at intervals, by a clock that may be set back."""


def is_time(due: int, interval: int, now: int) -> bool:
    """Return whether something is due that was put off for an interval; all in ms.

    If the clock was set back, it is due at once: it must not wait until the clock shows the old time again.
    """
    return not due - interval <= now < due
