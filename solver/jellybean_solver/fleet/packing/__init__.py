"""Which worker holds which models: bin packing and wrap-around packing of whole workers."""
