"""The broker's records of itself: rounds of the sampler to Parquet in the object store.

No names here: the tier's process imports `work` alone, and each start of a broker pays for what comes with it.
"""
