"""The sans-IO core: programs that yield what they want done and are sent what came of it. No socket, no clock."""
