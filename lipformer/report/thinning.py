"""Long series are thinned out in such a way that their picture stays the same."""

from typing import Literal

import numpy as np

POINTS = 1_000
"""The largest number of points of a curve in a page."""


def thin(values: np.ndarray, limit: int) -> np.ndarray:
    """Choose at most `limit` places of a long series such that its curve looks the same.

    The series is cut into buckets of equal length. Of each the smallest and the largest value and the first one that is
    not finite are kept, and of the whole series the first and the last value.

    Args:
        values: (n,); may contain inf and nan.
        limit: the largest number of places, at least 5.

    Returns:
        (at most limit,), the chosen places in `values` in increasing order.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    kept = {0, len(values) - 1}
    for bucket in np.array_split(np.arange(len(values)), (limit - 2) // 3):
        finite = bucket[np.isfinite(values[bucket])]
        if len(finite):
            kept |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
        if len(finite) < len(bucket):
            kept.add(int(np.setdiff1d(bucket, finite)[0]))
    return np.array(sorted(kept))


def bucket_columns(
    values: np.ndarray, stands: np.ndarray, limit: int, *, keep: Literal["min", "max"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge the columns of a matrix into at most `limit` columns; values that are not finite are never lost.

    Args:
        values: (rows, columns); may contain inf and nan.
        stands: (rows, columns), whether there is a value.
        limit: the largest number of columns, at least 1.
        keep: which of the merged values each row keeps where all are finite; otherwise it keeps nan, or else inf.

    Returns:
        The merged values and whether there is one, both (rows, at most limit), and the last column of each bucket, (at
        most limit,).
    """
    if values.shape[1] <= limit:
        return values, stands, np.arange(values.shape[1])
    buckets = np.array_split(np.arange(values.shape[1]), limit)
    reduce = np.fmin if keep == "min" else np.fmax
    broken = {bad: stands & test(values) for bad, test in ((np.inf, np.isinf), (np.nan, np.isnan))}
    merged = np.stack([reduce.reduce(values[:, bucket], axis=1) for bucket in buckets], axis=1)
    for bad, where in broken.items():
        merged[np.stack([where[:, bucket].any(axis=1) for bucket in buckets], axis=1)] = bad
    standing = np.stack([stands[:, bucket].any(axis=1) for bucket in buckets], axis=1)
    return merged, standing, np.array([bucket[-1] for bucket in buckets])
