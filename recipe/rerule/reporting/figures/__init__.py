"""The figures of the report. Lines differ by style and marker as well as by colour, and gaps stay gaps."""
