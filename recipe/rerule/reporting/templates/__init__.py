"""Page, its style and script, and Markdown, as Jinja2 templates; every value in HTML is escaped."""
