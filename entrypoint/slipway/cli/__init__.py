"""What a user types: the commands, their words, and what they print."""
