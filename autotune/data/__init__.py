"""Sample lengths, tokens and the micro-step schedule."""
