"""What a client agrees to: the terms of a task, and the policy it checks them against."""
