"""Fewer points for the same picture."""

from typing import Literal

import numpy as np


def thin(values: np.ndarray, limit: int) -> np.ndarray:
    """Choose at most `limit` places of a long series, such that its drawn curve looks the same.

    Of each of equal buckets stay the smallest value, the largest, and the first that is not finite; the first and the
    last of all stay too.

    Args:
        values: (n,), inf and nan among them.
        limit: at least 5.

    Returns:
        (at most limit,) places in `values`, rising.
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
    """Merge the columns of a matrix into at most `limit`, such that nothing that went wrong is lost.

    Args:
        values: (rows, columns), inf and nan among them.
        stands: (rows, columns), whether there is a value.
        limit: at least 1.
        keep: which of the values in a bucket of columns stays in each row, if all are finite; nan and inf beat them.

    Returns:
        values and stands, (rows, at most limit), and (at most limit,) the last column of each bucket.
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
