"""The error of a setting that is refused."""


class SettingsError(ValueError):
    """A setting is missing, unknown or out of range; the message is one line and says what to do."""
