"""One plan in several clusters: deployed, rolled back, removed and read over all of them."""
