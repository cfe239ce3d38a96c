"""From a question to the events worth putting before the model."""
