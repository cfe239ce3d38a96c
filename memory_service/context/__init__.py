"""The context: which of a person's events a conversation is shown, and which move into documents."""
