"""What columns of numbers are asked often, where numpy has no word for it or takes long."""

from __future__ import annotations

from typing import TypeVar

from mqtool.late import np, npt

Number = TypeVar("Number", bound="np.number")


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the values in order, each once.

    ``np.unique`` hashes since numpy 2.3, which takes ten times as long where most values differ. Cost: a sort.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(values)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered


def is_among(values: npt.NDArray[np.int64], ordered: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which of some values are among others, which are in order. Cost: a search for each.

    >>> is_among(np.array([3, 1, 4]), np.array([1, 3, 5]))
    array([ True,  True, False])
    """
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    is_equal: npt.NDArray[np.bool_] = ordered[np.searchsorted(ordered, values).clip(max=len(ordered) - 1)] == values
    return is_equal
