"""Text files of any kind become folders of tokens, which a training reads where they lie."""
