"""Sheets as text: for the terminal, Markdown, CSV and LaTeX. All renderers take the same format-independent tables."""
