"""HTML of the page, as Jinja2 templates of the package; every value in them is escaped."""
