"""What differs between the arms, as small pure tensor functions."""
