"""Anchors: what answers that are the same whatever is asked would score, with no model at all.

They say how much of a low forget score is refusing and how much of it is left to explain. Where the target's
own name is a gold answer, naming it in the refusal scores above 0.
"""

ANCHORS = {
    "always refuses, naming the target": "I'm not certain about {subject}.",
    "always refuses, unnamed": "I don't know.",
}
"""{subject} is the name of whom the probe is about."""
