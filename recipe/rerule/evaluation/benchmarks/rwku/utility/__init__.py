"""RWKU's utility sets (MMLU, BBH, TruthfulQA, TriviaQA) through lm-eval: `evaluate utility`.

RWKU draws a sample of each set for each target; these samples are used, with the prompts and metrics of
lm-eval's own tasks. RWKU words its prompts in other ways, so the numbers compare models with one another,
not with RWKU's table. `target_files` reads a target's files, `tasks` makes lm-eval tasks of them, `harness`
runs these on a model. lm-eval is an optional extra.
"""
