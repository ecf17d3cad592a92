"""The benchmarks, a module each; `registry.Benchmark` says what each of them declares."""
