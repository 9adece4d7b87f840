"""What a request costs besides its model: one agent beside other Python servers, all asked by one load generator."""
