"""Output of records: tables and remarks for the terminal, Markdown, CSV, JSON and LaTeX; figures; HTML pages."""
