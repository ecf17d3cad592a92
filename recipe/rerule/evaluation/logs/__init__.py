"""Files of per-sample values: open-unlearning's logs, records of answers, metrics of both."""
