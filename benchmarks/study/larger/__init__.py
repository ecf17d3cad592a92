"""The study on a larger world of TOFU's text, with its own plan: benchmarks/study/larger/plan.md."""
