"""Sheets as text: for the terminal, Markdown, CSV and LaTeX. Each renderer takes the same neutral tables."""
