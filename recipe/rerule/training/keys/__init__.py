"""The settings that the product knows, declared: name, allowed values, a line of help.

There is one table for each stage (`stage1`, `stage2`); the replay declares its own settings (`replay`).
`settings` checks a configuration against the tables, `usage` prints them for --help, and `overrides` finds
the nearest name of a mistyped key. Nothing here imports torch or verl, so that --help answers at once. Keys
of verl that no table names pass as they are.
"""
