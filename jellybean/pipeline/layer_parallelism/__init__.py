"""Tables, JSON records and pictures of what layers send under data and tensor parallelism."""
