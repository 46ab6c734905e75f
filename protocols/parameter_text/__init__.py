"""Parameters as text: `name=value` pairs, and the first fault of a rejected set."""
