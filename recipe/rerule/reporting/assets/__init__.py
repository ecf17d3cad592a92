"""Style and script of the page, as files of the package."""
