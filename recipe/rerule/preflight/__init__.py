"""All that is looked at before a run starts, without Ray and accelerators; `checks` has the lists."""
