"""Sentences for people: cautions, findings and notes."""
