"""Linear and mixed-integer programs, solved by HiGHS: built from objects (PuLP), from arrays, or kept warm."""
