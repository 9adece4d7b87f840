"""Problems too large to enumerate: branch and bound over a joint LP, then rounding to whole workers."""
