"""Benchmarks of speed, cost and prediction accuracy; their results are in `docs/benchmarks.md`.

    python -m benchmarks                  run all benchmarks (`make bench`; hours)
    python -m benchmarks NAME ...         run these
    python -m benchmarks --smoke NAME     a short run that shows that the benchmark works; writes nothing
    python -m benchmarks --render         write `docs/benchmarks.md` again from the committed results

A benchmark returns a `Result`: title, method, reference, tables and notes. The runner writes it, with date, hardware
and command, to `benchmarks/results/NAME.json`, and renders `docs/benchmarks.md` from all files of that folder. Both
are committed. Only the results of benchmarks that ran are replaced.

To add a table:

1. Write a function `NAME(smoke: bool) -> Result` with the decorator `@benchmark`, in a module of this package. The
   texts of the `Result` are written again by each run, so a figure in them must be computed from the run.
2. Import the module in `benchmarks/__main__.py`.
3. Run `python -m benchmarks NAME` and commit `results/NAME.json` and `docs/benchmarks.md`.

A table that no benchmark here creates (nightly tests, a one-off experiment) is a JSON file of the same form, written by
hand, whose `command` says how to repeat it; `python -m benchmarks --render` adds it to the page. A test fails when the
page is not what the results render to.
"""
