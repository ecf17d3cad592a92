"""A study whose plan is older than its runs: benchmarks/study/plan.md."""
