"""From events to records: pure, without torch."""
